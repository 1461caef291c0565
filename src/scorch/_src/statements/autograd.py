"""Statements on tensors that require gradients: one rule for all of tensor algebra.

Every statement is a function of arrays: dense tensors, and the values of sparse ones, whose patterns are
fixed. Its gradients are statements again (``notation.differentiate``), sampled at the patterns of sparse
operands, and run the same way; so there are gradients of any order, forward derivatives, and ``torch.func``.
"""

from __future__ import annotations

import contextvars
import functools
import weakref
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from scorch._src.bounded import BoundedCache
from scorch._src.grad_state import is_differentiable
from scorch._src.notation.indexing import Statement
from scorch._src.statements.batches import batched, gradients_of_batch
from scorch._src.statements.call_cache import MAX_CALLS, describe, full_key
from scorch._src.statements.formula import Call, Formula, Source, formula_of
from scorch._src.statements.gradients import change_of, forward_of, gradient_of
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.autograd import apply, outside_pattern_error, sparse_of, values_of, watcher_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import (
    is_legacy_batchedtensor,
    len_torch_dispatch_stack,
    peek_interpreter_stack,
)

Result = SparseTensor | torch.Tensor

SKIP_RESULT = contextvars.ContextVar("SKIP_RESULT", default=False)  # only gradients are needed

_known: BoundedCache[Hashable, Formula] = BoundedCache(MAX_CALLS, "differentiable calls")


def repeat_differentiable(head: tuple[Any, ...], operands: Sequence[Any]) -> Result | None:
    """Repeat a cached differentiable call; None: there is none, and it must be planned."""
    key = _key(head, operands)
    try:
        formula = None if key is None else _known.get(key)
    except TypeError:  # no format: planning raises the error
        return None
    return None if formula is None else _connect(formula, operands, operands)


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
    formula: Formula, operands: Sequence[Any], readable: Sequence[Any] | None, known: Any = None
) -> Result:
    """Run a formula on the arrays of tensors, and connect the result to those."""
    arrays: list[torch.Tensor] = []
    patterns: list[Pattern | None] = []
    sources: list[Source] = []
    for operand in operands:
        if isinstance(operand, SparseTensor):
            arrays.append(values_of(operand, in_statement=True))
            patterns.append(operand.storage.pattern)
            sources.append(weakref.ref(operand if operand.source_values is None else operand.source_values))
        else:
            arrays.append(operand)
            patterns.append(None)
            sources.append(None)
    call = Call(formula, patterns, sources, readable, known)
    array = compute(call, arrays)
    return array if call.pattern is None else sparse_of(call.pattern, array)


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


class _Statement(torch.autograd.Function):
    """A statement as a function of arrays."""

    @staticmethod
    def forward(call: Call, *arrays: torch.Tensor) -> torch.Tensor:
        if SKIP_RESULT.get() and call.formula.format == "dense":
            return _placeholder(call, arrays)
        result = forward_of(call, arrays)
        for array in arrays:
            if result is array:
                return result.detach()
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        call, *arrays = inputs
        ctx.call = call
        ctx.save_for_forward(*arrays)
        if peek_interpreter_stack() is None:  # arrays that no gradient reads may be written to meanwhile
            for place, is_read in enumerate(call.formula.read_by_gradients(ctx.needs_input_grad[1:])):
                if not is_read:
                    arrays[place] = arrays[place].data
        ctx.save_for_backward(*arrays)

    @staticmethod
    def backward(ctx: Any, incoming: torch.Tensor) -> Any:
        call, arrays = ctx.call, ctx.saved_tensors
        gradients: list[torch.Tensor | None] = [None]
        create_graph = is_differentiable(incoming, *arrays)
        for place, needed in enumerate(ctx.needs_input_grad[1:]):
            if not needed:
                gradients.append(None)
                continue
            watcher = watcher_of(call.sources[place]) if call.sources else None
            if watcher is not None:
                if call.pattern is not None:  # the gradient is known on the pattern of the result alone
                    raise outside_pattern_error()
                watcher(call, arrays, place, incoming.detach())
            array = arrays[place]
            is_float = array.is_floating_point() or array.is_complex()
            gradients.append(
                gradient_of(call, arrays, place, incoming, create_graph, compute) if is_float else None
            )
        return tuple(gradients)

    @staticmethod
    def jvp(ctx: Any, _: Any, *changes: Any) -> Any:
        return change_of(ctx.call, ctx.saved_tensors, changes, compute)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], call: Call, *arrays: torch.Tensor) -> Any:
        return batched(call, arrays, in_dims[1:], info.batch_size, compute)
