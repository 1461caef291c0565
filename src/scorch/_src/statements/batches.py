"""Batched statements, for ``torch.vmap`` and batched gradients: one index more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.formats import Format, as_format
from scorch._src.grad_state import untracked
from scorch._src.notation.indexing import Statement
from scorch._src.notation.nodes import Access, Assign, Expr
from scorch._src.notation.trees import accesses, substitute
from scorch._src.statements.formula import Call, Compute, fresh
from scorch._src.statements.gradients import call_on, forward_of
from scorch._src.storage.storage import Pattern
from scorch._src.torch_internals import (
    add_batch_dim,
    is_legacy_batchedtensor,
    remove_batch_dim,
)
from scorch.errors import UnsupportedError


def batched(
    call: Call,
    arrays: Sequence[torch.Tensor],
    in_dims: Sequence[int | None],
    size: int,
    compute: Compute,
) -> tuple[torch.Tensor, int | None]:
    """Run the statement with one more index: the last one of the batched operands and the result.

    The values of a batched sparse operand are one dense level more below its pattern.
    """
    if all(dim is None for dim in in_dims):
        return compute(Call(call.formula, call.patterns), arrays), None
    assign, names = call.formula.assign, call.formula.names
    index = fresh("batch", call.formula.taken)
    is_batched = {name for name, dim in zip(names, in_dims, strict=True) if dim is not None}
    arrays_by_name: dict[str, tuple[torch.Tensor, Pattern | None]] = {}
    for name, array, pattern, dim in zip(names, arrays, call.patterns, in_dims, strict=True):
        if dim is None:
            arrays_by_name[name] = array, pattern
        elif pattern is None:
            arrays_by_name[name] = array.movedim(dim, -1), None
        else:
            arrays_by_name[name] = array.movedim(dim, -1).reshape(-1), _deeper(pattern, size)
    target = Access(assign.target.tensor, (*assign.target.indices, index))
    statement = Statement(Assign(target, _with_index(assign.value, is_batched, index)))
    inner, deeper = call_on(statement, names, arrays_by_name, _batched_format(call, arrays, in_dims))
    result = compute(inner, deeper)
    if inner.pattern is None:
        return result, result.dim() - 1
    outer = _shallower(inner.pattern)
    call.pattern = outer
    return result.reshape(outer.size, size), 1


def gradients_of_batch(call: Call, arrays: Sequence[torch.Tensor], compute: Compute) -> torch.Tensor:
    """Run a call on the batched gradients of ``torch.autograd.grad(is_grads_batched=True)``."""
    level = max(map(_level_of, arrays))
    in_dims = [0 if is_legacy_batchedtensor(array) else None for array in arrays]
    plain = [
        array if dim is None else remove_batch_dim(array, level, 1, 0)
        for array, dim in zip(arrays, in_dims, strict=True)
    ]
    size = next(array.shape[0] for array, dim in zip(plain, in_dims, strict=True) if dim is not None)
    result, dim = batched(call, plain, in_dims, size, compute)
    assert dim is not None
    return add_batch_dim(result, dim, level)


def _level_of(array: torch.Tensor) -> int:
    """Return the innermost level of batches that an array has, counted from 1; 0 without any.

    The array itself is asked: gradients of tensors on a device are computed in a thread that knows no level.
    """
    level = 0
    while is_legacy_batchedtensor(array):
        level += 1
        array = remove_batch_dim(array, level, 1, 0)
    return level


def _with_index(expr: Expr, batched: set[str], index: str) -> Expr:
    """Append ``index`` to the indices of the tensors in ``expr`` that are ``batched``."""
    used = [access for access in accesses(expr) if access.tensor in batched]
    return substitute(expr, {access: Access(access.tensor, (*access.indices, index)) for access in used})


def _deeper(pattern: Pattern, size: int) -> Pattern:
    return pattern.carried(_deeper_format(pattern.format), (*pattern.shape, size), len(pattern.format))


def _deeper_format(form: Format) -> Format:
    levels = (*form.levels, *Format("d").levels)
    return Format(levels, order=(*form.order, form.dims), blocks=dict(form.blocks))


def _shallower(pattern: Pattern) -> Pattern:
    form = pattern.format
    levels = len(form) - 1
    if not form.levels[-1].is_full or form.order[-1] != len(pattern.shape) - 1:
        raise UnsupportedError("vmap over this expression returns a sparse result that is not batched evenly")
    outer = Format(form.levels[:-1], order=form.order[:-1], blocks=dict(form.blocks))
    return Pattern(
        outer, pattern.shape[:-1], pattern.pos[:levels], pattern.crd[:levels], pattern.counts[:levels]
    )


def _batched_format(call: Call, arrays: Sequence[torch.Tensor], in_dims: Sequence[int | None]) -> Any:
    """Infer the format of the result without the batch, and add a dense level below."""
    form = call.formula.format
    if form is None:  # it depends on patterns and shapes alone: run on zeros to infer it
        probe = Call(call.formula, call.patterns)
        with untracked():
            forward_of(probe, [_zeros(array, dim) for array, dim in zip(arrays, in_dims, strict=True)])
        form = "dense" if probe.pattern is None else probe.pattern.format
    unbatched = as_format(form, len(call.formula.assign.target.indices))
    return "dense" if unbatched.is_dense else _deeper_format(unbatched)


def _zeros(array: torch.Tensor, without: int | None) -> torch.Tensor:
    shape = list(array.shape)
    if without is not None:
        del shape[without]
    return torch.zeros(shape, dtype=array.dtype, device=array.device)
