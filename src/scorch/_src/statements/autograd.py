"""Statements on tensors that are learned: one rule for all of tensor algebra.

Every statement is a function of arrays: dense tensors, and the values of sparse ones, whose patterns are
fixed. Its gradients are statements again (``notation.differentiate``), sampled at the patterns of sparse
operands, and run the same way; so there are gradients of any order, forward derivatives, and ``torch.func``.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.grad_state import is_differentiable, is_transformed
from scorch._src.statements.arrays import Call, Piece, Result, Run, forward_of
from scorch._src.statements.batches import batched, gradients_of_batch
from scorch._src.statements.gradients import change_of, gradient_of, read_by_gradients
from scorch._src.tensor.autograd import apply, unknown_outside, watcher_of
from scorch._src.torch_internals import is_legacy_batchedtensor

UNREAD = contextvars.ContextVar("UNREAD", default=False)  # only gradients are asked for, not the result


def learned(
    text: str,
    names: Sequence[str],
    operands: Sequence[Any],
    format: Any,
    run: Run,
    sparse_grad: bool = False,
) -> Result:
    """The result of a statement, connected to its operands; ``run`` computes it from plain tensors."""
    pieces = [Piece.of(operand) for operand in operands]
    return computed(text, tuple(names), pieces, format, run, sparse_grad).tensor()


def computed(
    text: str,
    names: tuple[str, ...],
    pieces: Sequence[Piece],
    format: Any,
    run: Run,
    sparse_grad: bool = False,
) -> Piece:
    """The result of a statement on pieces, connected to them."""
    arrays = [piece.array for piece in pieces]
    patterns, sources = tuple(piece.pattern for piece in pieces), tuple(piece.source for piece in pieces)
    call = Call(text, names, patterns, format, run, sparse_grad, sources)
    if is_differentiable(*arrays):
        return Piece(apply(_Statement, call, *arrays), call.pattern)
    if any(map(is_legacy_batchedtensor, arrays)):
        return Piece(gradients_of_batch(call, arrays, computed), call.pattern)
    return Piece(forward_of(call, arrays), call.pattern)


def _unread(call: Call, arrays: Sequence[torch.Tensor]) -> torch.Tensor:
    """A result of the right shape and dtype without its numbers."""
    sizes = call.sizes(arrays)
    dtype = functools.reduce(torch.promote_types, [array.dtype for array in arrays])
    return torch.zeros((), dtype=dtype, device="cpu").expand([sizes[i] for i in call.assign.target.indices])


def _kept(call: Call, arrays: Sequence[torch.Tensor], needed: Sequence[bool]) -> Sequence[torch.Tensor]:
    """The arrays that gradients read; of the others the memory alone, which may be written to meanwhile."""
    if is_transformed():
        return arrays
    read = read_by_gradients(call.text, call.names, tuple(needed))
    if len(read) == len(arrays):
        return arrays
    pairs = zip(call.names, arrays, strict=True)
    return [array if name in read else array.data for name, array in pairs]


class _Statement(torch.autograd.Function):
    """A statement as a function of arrays."""

    @staticmethod
    def forward(call: Call, *arrays: torch.Tensor) -> torch.Tensor:
        if UNREAD.get() and call.format == "dense":
            return _unread(call, arrays)
        found = forward_of(call, arrays)
        return found.detach() if any(found is array for array in arrays) else found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        call, *arrays = inputs
        ctx.call = call
        ctx.save_for_backward(*_kept(call, arrays, ctx.needs_input_grad[1:]))
        ctx.save_for_forward(*arrays)

    @staticmethod
    def backward(ctx: Any, incoming: torch.Tensor) -> Any:
        call, arrays = ctx.call, ctx.saved_tensors
        found = []
        for place, needed in enumerate(ctx.needs_input_grad[1:]):
            is_float = arrays[place].is_floating_point() or arrays[place].is_complex()
            watcher = watcher_of(call.sources[place]) if needed and call.sources else None
            if watcher is not None:
                if call.pattern is not None:  # what comes back is known at the places of the result alone
                    raise unknown_outside()
                watcher(call, arrays, place, incoming.detach())
            found.append(
                gradient_of(call, arrays, place, incoming, computed) if needed and is_float else None
            )
        return None, *found

    @staticmethod
    def jvp(ctx: Any, _: Any, *changes: Any) -> Any:
        return change_of(ctx.call, ctx.saved_tensors, changes, computed)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], call: Call, *arrays: torch.Tensor) -> Any:
        return batched(call, arrays, in_dims[1:], info.batch_size, computed)
