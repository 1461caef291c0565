"""Calls that have been made before: from what the arguments are straight to the prepared kernel.

A call is known by the text of its expression and, for every operand, what a kernel depends on: the key of a
sparse tensor; shape, dtype and order in memory of a dense one. Looking that up takes a microsecond or two;
nothing is parsed or checked again. The last call with the same text and sparse operands is tried first: the
builtin that runs the kernel checks the dense operands by itself, which is cheaper than asking them from
Python. Only calls that come down to one kernel are kept here; the others find their prepared steps further
down (``engine.execute``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch.nn import Parameter

from scorch._src.backends.base import Direct
from scorch._src.bounded import BoundedCache
from scorch._src.engine.executable import Prepared, Tensor, arrays_of, has_no_gaps, stride_order
from scorch._src.engine.execute import DenseProduct
from scorch._src.events import LISTENERS
from scorch._src.formats import Format
from scorch._src.storage.storage import Storage
from scorch._src.tensor.sparse_tensor import SparseTensor, wrap
from scorch._src.torch_internals import len_torch_dispatch_stack, peek_interpreter_stack
from scorch.settings import DEFAULT, Settings, current

MOST_CALLS = 4096
_COMPLEX = frozenset({torch.complex64, torch.complex128, torch.complex32})  # may be lazily conjugated

Operands = Sequence[Any]
Result = SparseTensor | torch.Tensor
Run = Callable[[Operands], Result | None]
Checked = Callable[[Operands], Result | None]
Call = Callable[..., Any]  # takes what is wanted, and the arrays of the operands

_recent: BoundedCache[Hashable, Checked] = BoundedCache(MOST_CALLS, "recent calls")
_known: BoundedCache[Hashable, tuple[Run, Checked | None]] = BoundedCache(MOST_CALLS, "calls")


def repeat_call(head: tuple[Any, ...], operands: Operands) -> Result | None:
    """The result of a call whose like was made before, or None: then it must go the long way.

    ``head`` is all but the operands: the text, the format and the names of tensors.
    """
    quick = _quick_key(head, operands)
    if quick is None:
        return None
    in_force = current()
    try:
        recent = _recent.get(quick)
    except TypeError:  # a format that is none: the long way will say so
        return None
    is_usual = in_force is DEFAULT or _is_usual(in_force)
    if recent is not None and is_usual and not LISTENERS and not len_torch_dispatch_stack():
        found = recent(operands)
        if found is not None:
            return found
    if peek_interpreter_stack() is not None or len_torch_dispatch_stack():
        return None
    key = _full_key(quick, operands)
    is_known = key is not None and not in_force.debug and _is_same_kernel(in_force)
    known = _known.get(key) if is_known else None
    if known is None:
        return None
    run, checked = known
    if checked is not None:
        _recent[quick] = checked
    return run(operands)


def _is_usual(in_force: Settings) -> bool:
    return not in_force.debug and in_force.dense_budget is None and _is_same_kernel(in_force)


def _is_same_kernel(in_force: Settings) -> bool:
    """Whether the settings give the kernels that the default gives."""
    return in_force.without == DEFAULT.without and in_force.backend == DEFAULT.backend


def keep_call(
    head: tuple[Any, ...], operands: Operands, prepared: Prepared | DenseProduct | None, names: Sequence[str]
) -> None:
    """Remember what runs a call whose operands have ``names``; old calls go when there are too many."""
    quick = _quick_key(head, operands)
    key = None if quick is None else _full_key(quick, operands)
    if prepared is None or key is None or quick is None or not _is_usual(current()):
        return
    places = [names.index(name) for name, _ in prepared.sources]
    checked = None
    # With integers a result may depend on torch's default dtype, which the quick key leaves out.
    is_float = all(value.dtype.is_floating_point for value in operands)
    dense = [value for value in operands if type(value) is not SparseTensor]
    is_kernel = isinstance(prepared, Prepared) and not prepared.converts and not prepared.is_large
    is_kernel = is_kernel and all(map(has_no_gaps, dense))
    if isinstance(prepared, Prepared) and is_kernel and prepared.direct is not None and is_float:
        checked = _run_checked(prepared, prepared.direct, places, operands)
    _known[key] = _run(prepared, places, all(value.is_contiguous() for value in dense)), checked
    if checked is not None:
        _recent[quick] = checked


def keep_as(other: tuple[Any, ...], head: tuple[Any, ...], operands: Operands) -> None:
    """Remember the call of ``head``, if it was kept, under ``other`` as well: another name of the same."""
    quick, alias = _quick_key(head, operands), _quick_key(other, operands)
    if quick is None or alias is None:
        return
    known = _known.get(_full_key(quick, operands))
    key = _full_key(alias, operands)
    if known is None or key is None:
        return
    _known[key] = known
    if known[1] is not None:
        _recent[alias] = known[1]


def _quick_key(head: tuple[Any, ...], operands: Operands) -> Hashable | None:
    """The text and the sparse operands; None if some operand is of a kind that always takes the long way.

    A tensor that is negated lazily looks to C like one that is not. (C sees by itself where a tensor is a
    shell without memory, inside ``torch.func`` or a fake tensor mode.)
    """
    key: list[Any] = [*head]
    if type(head[1]) is Format:  # formats that are equal may differ for tensors of other ranks
        key.append(head[1].family)
    for value in operands:
        kind = type(value)
        if kind is SparseTensor:
            key.append(value.storage.key)
        elif (kind is torch.Tensor or kind is Parameter) and not value.is_neg():
            key.append(None)
        else:
            return None
    return tuple(key)


def _full_key(quick: Hashable, operands: Operands) -> Hashable | None:
    """All that the kernel depends on; None if a dense operand is of a kind that takes the long way."""
    key: list[Hashable] = [quick, torch.get_default_dtype()]
    for value in operands:
        if type(value) is SparseTensor:
            continue
        dtype = value.dtype
        if value.layout is not torch.strided or dtype in _COMPLEX:
            return None
        if not value.is_cpu or value.is_nested or not value.data_ptr():
            return None
        key.append((value.shape, dtype, None if value.is_contiguous() else stride_order(value)))
    return tuple(key)


def _run(prepared: Prepared | DenseProduct, places: list[int], contiguous: bool) -> Run:
    def run(operands: Operands) -> Result | None:
        sources: list[Tensor] = []
        for place in places:
            value = operands[place]
            sources.append(value.storage if type(value) is SparseTensor else value)
        found = prepared(sources, contiguous)
        return SparseTensor(found) if isinstance(found, Storage) else found

    return run


def _run_checked(prepared: Prepared, direct: Direct, places: list[int], operands: Operands) -> Checked:
    """As ``_run``, shorter; None if a dense operand is not what it was."""
    call = direct.bind(direct.guard([_guarded(operands[place]) for place in places]))
    if prepared.assembly == "shared" and prepared.pattern_levels == len(prepared.format):
        return _run_on_pattern(prepared, direct, places, call)
    is_dense = prepared.assembly == "dense" and not prepared.back
    if places == [0] and is_dense and type(operands[0]) is SparseTensor:
        return _run_one(direct, call)
    if places != [0, 1] or type(operands[0]) is not SparseTensor:
        return _run_any(prepared, direct, places, call)
    is_sparse_pair = type(operands[1]) is SparseTensor
    if is_sparse_pair and prepared.slots:
        return _run_sparse_pair(prepared, direct, call)
    if not is_sparse_pair and is_dense:
        return _run_pair(direct, call)
    return _run_any(prepared, direct, places, call)


def _guarded(operand: Any) -> int | tuple[torch.Tensor, tuple[int, ...]]:
    """What is checked of an operand: nothing of a sparse one, which has so many arrays."""
    if type(operand) is SparseTensor:
        return len(operand.storage.tensors)
    return operand, stride_order(operand)


def _run_one(direct: Direct, call: Call) -> Checked:
    """A dense result of one sparse tensor, such as its sum."""
    result = direct.output

    def run(operands: Operands) -> Result | None:
        found: Result | None = call(result, *operands[0].storage.tensors)
        return found

    return run


def _run_pair(direct: Direct, call: Call) -> Checked:
    """The usual case, a sparse tensor times a dense one, without a loop."""
    result = direct.output

    def run(operands: Operands) -> Result | None:
        found: Result | None = call(result, *operands[0].storage.tensors, operands[1])
        return found

    return run


def _run_sparse_pair(prepared: Prepared, direct: Direct, call: Call) -> Checked:
    """Another usual case, a new pattern from two sparse tensors, without a loop."""
    result, wrap_slots = direct.output, prepared.wrap_slots

    def run(operands: Operands) -> Result | None:
        a, b = operands
        found = call(result, *a.storage.tensors, *b.storage.tensors)
        return None if found is None else SparseTensor(wrap_slots(found))

    return run


def _run_on_pattern(prepared: Prepared, direct: Direct, places: list[int], call: Call) -> Checked:
    """Values on the whole pattern of an operand, such as a sampled product."""
    source, output_of = places[prepared.pattern_source], direct.output_of
    form, shape = prepared.format, prepared.shape
    same = form  # the object that was equal last: comparing formats takes longer than finding them identical

    def run(operands: Operands) -> Result | None:
        nonlocal same
        pattern = operands[source].storage.pattern
        if pattern.format is not same:
            if pattern.format != form:
                return None
            same = pattern.format
        if pattern.shape != shape:
            return None
        found = call(output_of(pattern.counts[-1]), *_arrays(operands, places))
        return None if found is None else SparseTensor(Storage(pattern, found))

    return run


def _arrays(operands: Operands, places: list[int]) -> list[torch.Tensor]:
    """What the kernel takes of the operands, in its own order."""
    arguments: list[torch.Tensor] = []
    for place in places:
        value = operands[place]
        if type(value) is SparseTensor:
            arguments += value.storage.tensors
        else:
            arguments.append(value)
    return arguments


def _run_any(prepared: Prepared, direct: Direct, places: list[int], call: Call) -> Checked:
    output = None if prepared.assembly == "shared" else direct.output

    def run(operands: Operands) -> Result | None:
        chosen = [operands[place] for place in places]
        sources: list[Tensor] = [v.storage if type(v) is SparseTensor else v for v in chosen]
        wanted = prepared.output_for(direct, sources) if output is None else output
        found = call(wanted, *arrays_of(sources))
        return None if found is None else wrap(prepared.wrap(found, sources))

    return run
