"""Statements on tensors that require gradients: one rule for all of tensor algebra.

Every statement is a function of arrays: dense tensors, and the values of sparse ones, whose patterns are
fixed. Its gradients are statements again (``notation.differentiate``), sampled at the patterns of sparse
operands, and run the same way; so there are higher-order gradients, forward derivatives, and ``torch.func``.
"""

from __future__ import annotations

import contextvars
import functools
import weakref
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from scorch._src.backends.base import routines_for
from scorch._src.bounded import BoundedCache
from scorch._src.grad_state import is_differentiable, is_grad_enabled
from scorch._src.notation.indexing import Statement
from scorch._src.statements.batches import batched, gradients_of_batch
from scorch._src.statements.call_cache import (
    MAX_CALLS,
    MAX_OTHERS,
    describe,
    full_key,
    may_repeat,
    recent_run,
)
from scorch._src.statements.formula import Call, Formula, Source, formula_of
from scorch._src.statements.gradients import change_of, forward_of, gradient_of, repeat_gradient
from scorch._src.statements.short_runs import Run
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import (
    REWIRED,
    apply,
    check_gradient,
    gradient_on,
    on_current_pattern,
    outside_pattern_error,
    sparse_of,
    values_of,
    watcher_of,
)
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import (
    DisableTorchFunctionSubclass,
    any_requires_grad,
    is_legacy_batchedtensor,
    len_torch_dispatch_stack,
    peek_interpreter_stack,
)

Result = SparseTensor | torch.Tensor

SKIP_RESULT = contextvars.ContextVar("SKIP_RESULT", default=False)  # only gradients are needed

_known: BoundedCache[Hashable, Formula] = BoundedCache(MAX_CALLS, "differentiable calls")
_Recent = tuple[tuple[Formula, Run], ...]  # the last one first
_recent: BoundedCache[Hashable, _Recent] = BoundedCache(MAX_CALLS, "recent differentiable calls")


def repeat_differentiable(
    head: tuple[Any, ...], operands: Sequence[Any], added: torch.Tensor | None = None
) -> Result | None:
    """Repeat a cached differentiable call; None: there is none, and it must be planned.

    As ``repeat_call`` does, it tries the last calls on the same sparse operands first. ``added`` is added to
    a dense result, in place, and has its dtype and last dimensions.
    """
    if peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return None
    described = describe(head, operands)
    if described is None:
        return None
    quick, sources = described
    try:
        recent = _recent.get(quick)
    except TypeError:  # no format: planning raises the error
        return None
    if recent is not None and may_repeat() and not SKIP_RESULT.get():
        for formula, run in recent:
            result = run(sources)
            if result is not None:
                is_new = type(result) is torch.Tensor
                return _connect(formula, operands, None, result, added, is_new)
    return _repeat_known(head, operands, quick, added)


def _repeat_known(
    head: tuple[Any, ...], operands: Sequence[Any], quick: Hashable, added: torch.Tensor | None
) -> Result | None:
    """Repeat a cached call with these shapes, dtypes and strides; it is tried first at the next call."""
    key = _key(head, operands)
    formula = None if key is None else _known.get(key)
    if formula is None:
        return None
    result = _connect(formula, operands, operands, None, added)
    run = recent_run(formula.head, operands)
    if run is not None:
        others = [known for known in _recent.get(quick, ()) if known[1] is not run]
        _recent[quick] = ((formula, run), *others[:MAX_OTHERS])
    return result


def keep_differentiable_as(other: tuple[Any, ...], head: tuple[Any, ...], operands: Sequence[Any]) -> None:
    """Cache the call of ``head``, if it is cached, under ``other`` as well: another name of the same."""
    key, alias = _key(head, operands), _key(other, operands)
    formula = None if key is None else _known.get(key)
    if formula is not None:
        _known[alias] = formula


def _key(head: tuple[Any, ...], operands: Sequence[Any]) -> Hashable | None:
    """Return what a formula depends on; None where arrays may be more than memory (``torch.func``)."""
    is_tracked = peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    if is_tracked or len_torch_dispatch_stack() or any(map(is_legacy_batchedtensor, operands)):
        return None
    described = describe(head, operands)
    return None if described is None else full_key(*described)


def differentiable(
    statement: Statement,
    names: Sequence[str],
    operands: Sequence[Any],
    format: Any,
    sparse_grad: bool = False,
    head: tuple[Any, ...] | None = None,
    known: Result | None = None,
) -> Result:
    """Run a statement and connect the result to its operands.

    ``head``: the key that the call is cached by, on these very operands. ``known``: the result, if it need
    not be computed.
    """
    formats = tuple(
        operand.storage.pattern.format if isinstance(operand, SparseTensor) else None for operand in operands
    )
    formula = formula_of(statement, tuple(names), formats, format, sparse_grad)
    result = _connect(formula, operands, None, known)
    key = None if head is None else _key(head, operands)
    if key is not None:
        _known[key] = formula
    return result


def _connect(
    formula: Formula,
    operands: Sequence[Any],
    readable: Sequence[Any] | None,
    known: Any = None,
    added: torch.Tensor | None = None,
    is_new: bool = False,
) -> Result:
    """Run a formula on the arrays of tensors, and connect the result to those.

    ``is_new``: the ``known`` result is a dense tensor that a kernel has just computed.
    """
    inputs: list[torch.Tensor] = []
    patterns: list[Pattern | None] = []
    sources: list[Source] = []
    is_by_autograd = peek_interpreter_stack() is None and forward_ad._current_level < 0 and is_grad_enabled()
    for operand in operands:
        if not isinstance(operand, SparseTensor):
            inputs.append(operand)
            patterns.append(None)
            sources.append(None)
            continue
        source = operand.parameter
        if source is None:
            source = operand if operand.source_values is None else operand.source_values
            if not any_requires_grad(operand):
                inputs.append(operand.storage.values)
            else:
                is_leaf = is_by_autograd and _is_leaf(operand)
                inputs.append(operand if is_leaf else values_of(operand, in_statement=True))
        else:
            inputs.append(source)
        patterns.append(operand.storage.pattern)
        sources.append(weakref.ref(source))
    call = Call(formula, patterns, sources, readable, known, None, is_new)
    if is_by_autograd and any_requires_grad(*inputs):
        array: torch.Tensor = apply(_Evaluate, call, added, *inputs)
    else:
        array = compute(call, inputs) if added is None else compute(call, inputs) + added
    return array if call.pattern is None else sparse_of(call.pattern, array)


def _is_leaf(tensor: SparseTensor) -> bool:
    """Whether a tensor, which requires a gradient, is a leaf of the graph."""
    if type(tensor.storage) is not Storage:
        return False
    with DisableTorchFunctionSubclass():
        return tensor.is_leaf


def compute(call: Call, arrays: Sequence[torch.Tensor]) -> torch.Tensor:
    """Run a call on arrays, and connect the array of the result to them."""
    if is_differentiable(*arrays):
        return apply(_Statement, call, *arrays)  # type: ignore[no-any-return]
    if any(map(is_legacy_batchedtensor, arrays)):
        return gradients_of_batch(call, arrays, compute)
    return forward_of(call, arrays)


def _placeholder(call: Call, arrays: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a result of the right shape and dtype with no values computed."""
    sizes = call.sizes(arrays)
    dtype = functools.reduce(torch.promote_types, [array.dtype for array in arrays])
    shape = [sizes[index] for index in call.formula.assign.target.indices]
    return arrays[0].new_zeros((), dtype=dtype).expand(shape)


def _run(call: Call, arrays: Sequence[torch.Tensor]) -> torch.Tensor:
    """Compute the array of the result, which is none of ``arrays`` themselves."""
    if SKIP_RESULT.get() and call.formula.format == "dense":
        return _placeholder(call, arrays)
    result = forward_of(call, arrays)
    for array in arrays:
        if result is array:
            return result.detach()
    return result


def _save(ctx: Any, call: Call, arrays: Sequence[torch.Tensor], needed: tuple[bool, ...]) -> None:
    """Save what gradients read; arrays that none reads may be written to meanwhile."""
    ctx.call = call
    is_read = call.formula.read_by_gradients(needed)
    ctx.save_for_backward(
        *[array if read else array.data for array, read in zip(arrays, is_read, strict=True)]
    )


def _gradients(
    call: Call, arrays: Sequence[torch.Tensor], needed: Sequence[bool], incoming: torch.Tensor
) -> Iterator[torch.Tensor | None]:
    """Compute the gradient of each array that needs one; None for others."""
    create_graph = is_differentiable(incoming, *arrays)
    is_plain = not create_graph and not is_legacy_batchedtensor(incoming)
    if is_plain and call.pattern is None and 0 in incoming.stride():  # of a sum: expanded
        incoming = incoming.contiguous()
    for place, array in enumerate(arrays):
        if not needed[place]:
            yield None
            continue
        watcher = watcher_of(call.sources[place]) if call.sources else None
        if watcher is not None:
            if call.pattern is not None:  # the gradient is known on the pattern of the result alone
                raise outside_pattern_error()
            watcher(call, arrays, place, incoming.detach())
        known = repeat_gradient(call, arrays, place, incoming) if is_plain else None
        if known is not None:
            yield known
            continue
        is_float = array.is_floating_point() or array.is_complex()
        yield gradient_of(call, arrays, place, incoming, create_graph, compute) if is_float else None


class _Evaluate(torch.autograd.Function):
    """A statement as a function of arrays and of sparse leaves, whose values need no node of their own.

    It is for programs that nothing but autograd tracks. ``added`` is added to the result.
    """

    @staticmethod
    def forward(ctx: Any, call: Call, added: torch.Tensor | None, *inputs: torch.Tensor) -> torch.Tensor:
        arrays, leaves = list(inputs), []
        for place, tensor in enumerate(inputs):
            if type(tensor) is SparseTensor:
                check_gradient(tensor)
                arrays[place] = tensor.storage.values
                leaves.append(place)
        ctx.leaves = leaves
        ctx.shape = None if added is None else added.shape
        result: torch.Tensor = call.known
        if call.is_new:
            call.operands = call.known = None
        else:
            result = _run(call, arrays)
        ctx.call = call
        saved, unread = [], []
        for array, read in zip(arrays, call.formula.read_by_gradients(ctx.needs_input_grad[2:]), strict=True):
            if read:
                saved.append(array)
            unread.append(None if read else array)
        ctx.unread = unread
        ctx.save_for_backward(*saved)
        if added is None:
            return result
        if call.is_new:
            return routines_for(result).add_row(result, added)
        return result + added if SKIP_RESULT.get() else result.add_(added)

    @staticmethod
    def backward(ctx: Any, incoming: torch.Tensor) -> Any:
        call, saved, (_, is_added, *needed) = ctx.call, iter(ctx.saved_tensors), ctx.needs_input_grad
        arrays = [next(saved) if array is None else array.data for array in ctx.unread]
        if is_grad_enabled():  # gradients of gradients are connected to the leaves
            for place in ctx.leaves:
                leaf = ctx.next_functions[place + (ctx.shape is not None)][0].variable
                arrays[place] = values_of(leaf, in_statement=True)
        gradients = list(_gradients(call, arrays, needed, incoming))
        for place in ctx.leaves:
            gradient = gradients[place]
            if gradient is not None:
                gradients[place] = gradient_on(call.patterns[place], gradient)
        if REWIRED:
            for place, (gradient, pattern) in enumerate(zip(gradients, call.patterns, strict=True)):
                if gradient is not None and pattern is not None and type(gradient) is not SparseTensor:
                    gradients[place] = on_current_pattern(gradient, pattern, call.sources[place])
        return None, incoming.sum_to_size(ctx.shape) if is_added else None, *gradients


class _Statement(torch.autograd.Function):
    """A statement as a function of arrays."""

    @staticmethod
    def forward(call: Call, *arrays: torch.Tensor) -> torch.Tensor:
        return _run(call, arrays)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        call, *arrays = inputs
        ctx.save_for_forward(*arrays)
        if peek_interpreter_stack() is None:
            _save(ctx, call, arrays, ctx.needs_input_grad[1:])
        else:
            ctx.call = call
            ctx.save_for_backward(*arrays)

    @staticmethod
    def backward(ctx: Any, incoming: torch.Tensor) -> Any:
        return None, *_gradients(ctx.call, ctx.saved_tensors, ctx.needs_input_grad[1:], incoming)

    @staticmethod
    def jvp(ctx: Any, _: Any, *changes: Any) -> Any:
        return change_of(ctx.call, ctx.saved_tensors, changes, compute)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], call: Call, *arrays: torch.Tensor) -> Any:
        return batched(call, arrays, in_dims[1:], info.batch_size, compute)
