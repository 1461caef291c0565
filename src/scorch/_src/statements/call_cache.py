"""Cached calls: from the arguments straight to the prepared kernel.

A call is keyed by the text of its expression and, for every operand, what a kernel depends on: the key of a
sparse tensor; shape, dtype and order in memory of a dense one. Looking that up takes a microsecond or two;
nothing is parsed or checked anew. The last calls with the same text and sparse operands are tried first: the
builtin that runs the kernel checks the dense operands by itself, which is cheaper than asking them from
Python. There are several, since the layers of a network multiply one graph by features of several widths.
Only calls that run one kernel are cached here; the others look up their prepared steps in ``engine.execute``.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn import Parameter

from scorch._src.backends.base import repeater
from scorch._src.backends.repeated_calls import ATTRIBUTES, CallObjects
from scorch._src.bounded import BoundedCache
from scorch._src.engine.executable import Prepared, Tensor, has_no_gaps, stride_order
from scorch._src.engine.execute import DenseProduct
from scorch._src.events import LISTENERS
from scorch._src.formats import Format
from scorch._src.grad_state import is_grad_enabled
from scorch._src.statements import short_runs
from scorch._src.statements.short_runs import Run, run_checked, run_converted
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.flatten import LIVE
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.registry import QUICK, TABLE
from scorch._src.tensor.sparse_tensor import TENSORS, SparseTensor, tensor_of
from scorch._src.torch_internals import (
    any_requires_grad,
    is_any_autocast_enabled,
    is_jit_tracing,
    len_torch_dispatch_stack,
    make_wrapper_subclass,
    peek_interpreter_stack,
)
from scorch.settings import DEFAULT, Settings, applied, current, in_block

MAX_CALLS = 4096
MAX_OTHERS = 7  # calls on the same sparse operands that are tried after the last one
MIN_VALUES = 4096  # of tensors on one pattern, from which on PyTorch combines them
_COMPLEX = frozenset({torch.complex64, torch.complex128, torch.complex32})  # may be lazily conjugated

Operands = Sequence[Any]
Result = SparseTensor | torch.Tensor

_recent: BoundedCache[Hashable, Run] = BoundedCache(MAX_CALLS, "recent calls")
_others: BoundedCache[Hashable, tuple[Run, ...]] = BoundedCache(MAX_CALLS, "calls before recent ones")
_known: BoundedCache[Hashable, tuple[Run, Run | None, bool]] = BoundedCache(MAX_CALLS, "calls")


def repeat_call(head: tuple[Any, ...], operands: Operands, as_storage: bool = False) -> Any:
    """Repeat a cached call; None: there is none, and it must be planned.

    ``head`` is all but the operands: what is computed, the format and the names of tensors. Operands are
    tensors or storages; a sparse result is a tensor, or with ``as_storage`` its storage.
    """
    described = describe(head, operands)
    if described is None:
        return None
    quick, sources = described
    try:
        recent = _recent.get(quick)
    except TypeError:  # no format: planning raises the error
        return None
    result, in_force = None, in_block() or applied[0]  # as ``current()``
    is_usual = in_force is DEFAULT or _is_usual(in_force)
    if recent is not None and is_usual and not LISTENERS and not len_torch_dispatch_stack():  # ``may_repeat``
        result = recent(sources)
        if result is None:
            result = _repeat_other(quick, sources)
    if result is None:
        run = _known_run(quick, sources)
        result = None if run is None else run(sources)
    return tensor_of(result) if type(result) is Storage and not as_storage else result


def repeat_pair(
    head: tuple[Any, ...],
    left: SparseTensor,
    right: torch.Tensor,
    before: Callable[[], object] | None = None,
) -> Result | None:
    """Repeat the last such call of a sparse tensor and another, sparse or a plain dense one (``TENSORS``).

    None where there is none, where something tracks the call, or where a tensor is a view. ``before`` is
    called before it is repeated.
    """
    if is_grad_enabled() and any_requires_grad(left, right):
        return None
    if LIVE or type(head[1]) is Format:  # a format: see ``describe``
        return None
    if is_any_autocast_enabled() or is_jit_tracing():
        return None
    if peek_interpreter_stack() is not None or forward_ad._current_level >= 0 or len_torch_dispatch_stack():
        return None
    in_force = in_block() or applied[0]  # as ``current()``
    if LISTENERS or not (in_force is DEFAULT or _is_usual(in_force)):
        return None
    first = left.storage
    if first.origin is not None or first.strides is not None:
        return None
    second: Any = right
    if type(right) is SparseTensor:
        second = right.storage
        if second.origin is not None or second.strides is not None:
            return None
        key = (*head, first.key, second.key)
    else:
        key = (*head, first.key, None)
    run = None if second is right and right.is_neg() else _recent.get(key)
    result: Any = None
    if run is not None:
        if before is not None:
            before()
        result = run((first, second))
        if result is None:
            result = _repeat_other(key, (first, second))
    return tensor_of(result) if type(result) is Storage else result


def _repeat_by_python(head: tuple[Any, ...], rule: int, *operands: Any) -> Any:
    """Repeat the last such call of two tensors that nothing tracks; None where there is more to do."""
    del rule  # which only operators have
    if len(operands) == 2 and type(operands[0]) is SparseTensor and type(operands[1]) in TENSORS:
        return repeat_pair(head, *operands)
    return None


class _Quick:
    """The quickest way to repeat a call: a builtin, once there is a cached call that it may run."""

    def __init__(self) -> None:
        self.repeat: Callable[..., Any] = _repeat_by_python
        self.is_known = False


quickest = _Quick()


def find_repeater() -> None:
    """Have builtins repeat calls from now on, also those of operators and of functions of values."""
    if quickest.is_known:
        return
    found = repeater(
        CallObjects(
            sparse=SparseTensor,
            storage=Storage,
            pattern=Pattern,
            dense=torch.Tensor,
            parameter=Parameter,
            format=Format,
            builtin=types.BuiltinFunctionType,
            make_wrapper=make_wrapper_subclass,
            wrap=tensor_of,
            default_dtype=torch.get_default_dtype,
            float32=torch.float32,
            float64=torch.float64,
            is_grad_enabled=is_grad_enabled,
            any_requires_grad=any_requires_grad,
            is_autocast=is_any_autocast_enabled,
            is_neg=torch.Tensor.is_neg,
            forward=forward_ad,
            level="_current_level",
            no_level=-1,
            in_block=in_block,
            applied=applied,
            usual=DEFAULT,
            is_usual=_is_usual,
            quiet=(peek_interpreter_stack, len_torch_dispatch_stack, is_jit_tracing),
            empty=(LIVE, LISTENERS),
            most_on_pattern=MIN_VALUES,
            names=ATTRIBUTES,
        )
    )
    quickest.is_known = True
    if found is None:
        return
    quickest.repeat = functools.partial(found.repeat, _recent, _others)
    for function, entry in TABLE.items():
        if entry.maps_values == 1 and entry.routine in found.functions:
            QUICK[function] = found.functions[entry.routine]
        elif entry.repeats is not None:
            entry.quick = functools.partial(quickest.repeat, *entry.repeats)


short_runs.prepare_builtins = hooks.repeat_by_builtins = find_repeater


def _repeat_other(quick: Hashable, sources: Sequence[Any]) -> Tensor | None:
    """Repeat one of the calls before the last one; None where they all had other dense operands."""
    for run in _others.get(quick, ()):
        result = run(sources)
        if result is not None:
            return result
    return None


def _remember(quick: Hashable, run: Run) -> None:
    """Have ``run`` tried first, before those that have been until now."""
    last = _recent.get(quick)
    if last is None or last is run:
        _recent[quick] = run
        return
    others = [last, *(other for other in _others.get(quick, ()) if other is not run)]
    _others[quick] = tuple(others[:MAX_OTHERS])
    _recent[quick] = run


def may_repeat() -> bool:
    """Whether the last call may be tried first: settings are usual, and nobody listens to calls."""
    in_force = in_block() or applied[0]  # as ``current()``
    if LISTENERS or len_torch_dispatch_stack():
        return False
    return in_force is DEFAULT or _is_usual(in_force)


def recent_run(head: tuple[Any, ...], operands: Operands) -> Run | None:
    """Return what is tried first for such a call with dense operands of these shapes, dtypes and strides."""
    described = describe(head, operands)
    known = None if described is None else _known.get(full_key(*described))
    return None if known is None else known[1]


def repeat_recent(
    head: tuple[Any, ...], operands: Sequence[tuple[torch.Tensor, Pattern | None]]
) -> Tensor | None:
    """Repeat the last such call on arrays, those with a pattern the values of a sparse operand.

    None where they differ from its own, or are of a kind whose calls are never cached (``describe``).
    """
    key: list[Any] = [*head]
    sources: list[Any] = []
    for array, pattern in operands:
        kind = type(array)
        if (kind is not torch.Tensor and kind is not Parameter) or array.is_neg():
            return None
        if pattern is None:
            key.append(None)
            sources.append(array)
        else:
            storage = Storage.of_saved(pattern, array)
            key.append(storage.key)
            sources.append(storage)
    quick = tuple(key)
    run = _recent.get(quick)
    if run is None or not may_repeat():
        return None
    result = run(sources)
    return _repeat_other(quick, sources) if result is None else result


def _known_run(quick: Hashable, sources: Sequence[Any]) -> Run | None:
    """Look up what runs a call with these shapes, dtypes and strides; it is tried first at the next call."""
    if peek_interpreter_stack() is not None or len_torch_dispatch_stack():
        return None
    in_force, key = current(), full_key(quick, sources)
    is_known = key is not None and not in_force.debug and _is_same_kernel(in_force)
    known = _known.get(key) if is_known else None
    if known is None:
        return None
    run, checked, converts = known
    if converts and not in_force.deterministic:  # another kernel may need no conversion
        return None
    if checked is not None:
        _remember(quick, checked)
    return run


def _is_usual(in_force: Settings) -> bool:
    return not in_force.debug and in_force.dense_budget is None and _is_same_kernel(in_force)


def _is_same_kernel(in_force: Settings) -> bool:
    """Check whether the settings lead to the same kernels as the defaults."""
    return in_force.disable == DEFAULT.disable and in_force.backend == DEFAULT.backend


def keep_call(
    head: tuple[Any, ...], operands: Operands, prepared: Prepared | DenseProduct | None, names: Sequence[str]
) -> None:
    """Cache what runs a call whose operands have ``names``; the oldest calls are evicted."""
    described = describe(head, operands)
    if prepared is None or described is None or not _is_usual(current()) or _adds(prepared):
        return
    quick, sources = described
    key = full_key(quick, sources)
    if key is None:
        return
    places = [names.index(name) for name, _ in prepared.sources]
    checked = None
    # With integers a result may depend on torch's default dtype, which the quick key leaves out.
    dtypes = [source.values.dtype if type(source) is Storage else source.dtype for source in sources]
    dense = [source for source in sources if type(source) is not Storage]
    is_kernel = all(map(has_no_gaps, dense)) and all(kind.is_floating_point for kind in dtypes)
    if isinstance(prepared, Prepared) and is_kernel and prepared.direct is not None:
        run_shortly = run_converted if prepared.converts else run_checked
        checked = run_shortly(prepared, prepared.direct, places, sources)
    contiguous = all(value.is_contiguous() for value in dense)
    converts = isinstance(prepared, Prepared) and prepared.converts
    _known[key] = lambda s: prepared([s[place] for place in places], contiguous), checked, converts
    if checked is not None:
        _remember(quick, checked)


def _adds(prepared: Prepared | DenseProduct) -> bool:
    return isinstance(prepared, Prepared) and prepared.planned.plan.adds


def keep_as(other: tuple[Any, ...], head: tuple[Any, ...], operands: Operands) -> None:
    """Cache the call of ``head``, if it is cached, under ``other`` as well: another name of the same."""
    described, alias = describe(head, operands), describe(other, operands)
    if described is None or alias is None:
        return
    known = _known.get(full_key(*described))
    key = full_key(*alias)
    if known is None or key is None:
        return
    _known[key] = known
    if known[1] is not None:
        _remember(alias[0], known[1])


def describe(head: tuple[Any, ...], operands: Operands) -> tuple[Hashable, list[Any]] | None:
    """Return a key of ``head`` and the sparse operands, and all operands as storages and dense tensors.

    None if some operand is of a kind whose calls are never cached. A tensor that is negated lazily looks to C
    like one that is not. (C itself recognizes tensors without memory, inside ``torch.func`` or a fake tensor
    mode.)
    """
    key: list[Any] = [*head]
    sources: list[Any] = []
    if type(head[1]) is Format:  # formats that are equal may differ for tensors of other ranks
        key.append(head[1].family)
    for value in operands:
        kind = type(value)
        if kind is SparseTensor:
            value = value.storage
            key.append(value.key)
        elif (kind is torch.Tensor or kind is Parameter) and not value.is_neg():
            key.append(None)
        elif kind is Storage:
            key.append(value.key)
        else:
            return None
        sources.append(value)
    return tuple(key), sources


def full_key(quick: Hashable, sources: Sequence[Any]) -> Hashable | None:
    """Return all that the kernel depends on; None if a dense operand is of a kind that is never cached."""
    key: list[Hashable] = [quick, torch.get_default_dtype()]
    for value in sources:
        if type(value) is Storage:
            continue
        dtype = value.dtype
        if value.layout is not torch.strided or dtype in _COMPLEX:
            return None
        if value.is_nested or not value.data_ptr():
            return None
        order = None if value.is_contiguous() else stride_order(value)
        key.append((value.shape, dtype, order, None if value.is_cpu else value.device))
    return tuple(key)
