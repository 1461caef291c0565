"""``einsum`` and ``evaluate`` over sharded and replicated operands."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from scorch._src.distributed.align import same_plans
from scorch._src.distributed.calls import rule
from scorch._src.distributed.communication.budget import one_call
from scorch._src.distributed.cost_model.plan import Plan
from scorch._src.distributed.products import sample
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.distributed.rules import (
    FOLD_COLUMNS,
    FOLD_ROWS,
    LOCAL,
    SHARDED,
    SUM,
    Partition,
    check_spelling,
    partition,
)
from scorch._src.distributed.sums import as_replicated, sum_processes
from scorch._src.events import LISTENERS, emit
from scorch._src.name_hints import suggests_keywords
from scorch._src.notation.indexing import parse
from scorch._src.notation.nodes import Assign
from scorch._src.notation.parse_einsum import read_indices
from scorch._src.notation.trees import accesses
from scorch._src.statements.einsum import einsum as einsum_local
from scorch._src.statements.evaluate import evaluate as evaluate_local
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import UnsupportedError

Tensor = torch.Tensor


@suggests_keywords
@rule(torch.einsum)
def einsum(equation: str, *operands: Any) -> Any:
    """Compute an einsum with sharded operands.

    Other operands are as in ``evaluate``. ``einsum("ij,ik,jk->ij", A, Q, K)`` computes attention scores at
    the entries of ``A``: each rank passes its rows of ``Q`` and ``K``, and fetches the rows of ``K`` that its
    entries need.

    Args:
        equation: an einsum equation with explicit output indices.
        operands: sharded tensors, and dense tensors with this rank's rows along a sharded index.

    Returns:
        This rank's rows of the result, a sharded tensor, or a tensor that is the same on all ranks.

    Raises:
        UnsupportedError: the equation needs communication that no rule provides.

    Example:

        >>> import torch, scorch, scorch.distributed as sd
        >>> A = sd.shard(scorch.from_torch(torch.eye(2), format="csr"))
        >>> sd.einsum("ij,jk->ik", A, torch.ones(2, 1))
        tensor([[1.],
                [1.]])
    """
    assign, named = read_einsum(equation, operands)
    if _is_sampled_by_rounds(assign, operands):
        return sample(*operands)
    return _run(assign, named, None, lambda local, form: einsum_local(equation, *local.values(), format=form))


def _is_sampled_by_rounds(assign: Assign, operands: tuple[Any, ...]) -> bool:
    """Return whether an einsum is ``ij,ik,jk->ij`` with a tensor whose rows are fetched peer by peer."""
    first = operands[0] if operands else None
    if not isinstance(first, RowSharded) or first.algorithm != "rounds" or first.has_split_rows:
        return False
    is_dense = all(type(operand) is Tensor for operand in operands[1:])
    indices = [access.indices for access in accesses(assign.value)]
    if len(indices) != 3 or not is_dense or any(len(pair) != 2 for pair in indices):
        return False
    i, j = indices[0]
    k = indices[1][-1]
    return indices == [(i, j), (i, k), (j, k)] and assign.target.indices == (i, j)


def read_einsum(equation: str, operands: tuple[Any, ...]) -> tuple[Assign, dict[str, Any]]:
    """Return an einsum as a statement, and its operands by their names in it."""
    names = [f"operand{number}" for number in range(len(operands))]
    terms, output = _read_equation(equation, operands)
    value = ",".join(f"{name}[{','.join(term)}]" for name, term in zip(names, terms, strict=True))
    assign = parse(f"result[{','.join(output)}] = {value.replace('],', '] * ')}").assign
    return assign, dict(zip(names, operands, strict=True))


def _read_equation(equation: str, operands: tuple[Any, ...]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    if "..." in equation:
        raise UnsupportedError(
            f"{equation!r}: '...' is not supported for sharded operands; write out their indices"
        )
    shapes = [tuple(operand.shape) for operand in operands]
    left, arrow, right = equation.replace(" ", "").partition("->")
    if not arrow:
        raise UnsupportedError(
            f"{equation!r}: with sharded operands, write the output indices, as in 'ij,jk->ik'"
        )
    terms = [tuple(term) for term in left.split(",")]
    read_indices(equation, [(1,) * len(shape) for shape in shapes])  # its errors are those of one process
    return terms, tuple(right)


def evaluate(expression: str, /, *, format: Any = None, **tensors: Any) -> Any:
    """Evaluate an index expression over sharded and replicated operands.

    The first two indices of a sharded tensor are sharded. Dense operands have this rank's rows along such an
    index, and are replicated otherwise.

    Args:
        expression: an index expression, as for ``scorch.evaluate``.
        format: the format of a sparse result.
        tensors: the operands by name.

    Returns:
        This rank's rows of the result, a sharded tensor, or a tensor that is the same on all ranks.

    Raises:
        UnsupportedError: the expression needs communication that no rule provides.

    Example:

        >>> import torch, scorch, scorch.distributed as sd
        >>> A = sd.shard(scorch.from_torch(torch.eye(2), format="csr"))
        >>> sd.evaluate("y[i] = A[i,j] * x[j]", A=A, x=torch.tensor([3.0, 4.0]))
        tensor([3., 4.])
    """
    statement = parse(expression)
    if statement.accumulate:
        raise UnsupportedError(
            f"{expression!r}: += is not supported for sharded tensors; use = and add the result yourself"
        )
    sharded = frozenset(name for name, tensor in tensors.items() if isinstance(tensor, RowSharded))
    if sharded:
        check_spelling(expression, statement.assign, sharded)
    return _run(
        statement.assign,
        tensors,
        format,
        lambda local, form: evaluate_local(expression, format=form, **local),
    )


@one_call
def _run(
    assign: Assign, tensors: Mapping[str, Any], format: Any, compute: Callable[[Mapping[str, Any], Any], Any]
) -> Any:
    sharded = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, RowSharded)}
    if not sharded:
        return compute(tensors, format)
    aligned = dict(zip(sharded, same_plans(list(sharded.values())), strict=True))
    one = next(iter(aligned.values()))
    how = partition_of(assign, aligned)
    local = {
        name: aligned[name].local
        if name in aligned
        else tensor
        if how.extend.get(name)
        else as_replicated(tensor, one.group)
        for name, tensor in tensors.items()
    }
    start = time.perf_counter()
    local |= _extended({name: tensors[name] for name in how.extend if name in tensors}, how, one)
    result = _finished(compute(local, _format_of(assign, aligned, how, format)), how, one)
    if LISTENERS and any(how.extend.values()):
        emit("product", plan_of(how, one, tensors), (), None, start)
    return result


def _format_of(assign: Assign, sharded: Mapping[str, RowSharded], how: Partition, format: Any) -> Any:
    """Return the format of this rank's result: the same on all ranks, whose entries differ in number."""
    target = assign.target.indices
    if how.outcome != SHARDED:
        is_dense = bool(target) and (how.outcome != LOCAL or not format)
        return "d" * len(target) if is_dense else format
    indices = {
        index for access in accesses(assign.value) if access.tensor in sharded for index in access.indices
    }
    if format is not None or set(target) <= indices:
        return format
    return "d" + "".join("s" if index in indices else "d" for index in target[1:])


def plan_of(how: Partition, one: RowSharded, tensors: Mapping[str, Any]) -> Plan:
    """Return the plan of a statement, whose widest operand brings rows; all are exchanged at once."""
    plans = {how.row: one.rows, how.column: one.columns}
    widths = [
        math.prod(tensors[name].shape) // max(plans[index].own, 1)
        for name, found in how.extend.items()
        for _, index in found
    ]
    is_transposed = how.outcome == FOLD_COLUMNS and not one.has_split_rows
    plan = (one.T if is_transposed else one).plan.at(features=max(widths, default=1))
    return dataclasses.replace(plan, algorithm="halo") if one.replicas == 1 else plan


def partition_of(assign: Assign, sharded: Mapping[str, RowSharded]) -> Partition:
    """Find how ranks compute a statement over these sharded tensors together."""
    used = {access.tensor for access in accesses(assign.value)}
    return partition(assign, frozenset(sharded) & used, next(iter(sharded.values())).has_split_rows)


def _extended(tensors: Mapping[str, Any], how: Partition, one: RowSharded) -> dict[str, Tensor]:
    """Return operands extended by the rows that this rank needs, in one exchange per index."""
    result: dict[str, Tensor] = {}
    for index, plan in ((how.row, one.rows), (how.column, one.columns)):
        wanted: dict[str, tuple[int, Tensor]] = {}
        for name, tensor in tensors.items():
            for dim, other in how.extend[name]:
                if other == index:
                    first = tensor.movedim(dim, 0) if type(tensor) is Tensor else tensor
                    plan.check_before_exchange(name, first)
                    wanted[name] = dim, first
        arrays = plan.extend([first for _, first in wanted.values()], one.wire)
        for (name, (dim, _)), array in zip(wanted.items(), arrays, strict=True):
            result[name] = array.movedim(0, dim)
    return result


def _finished(result: Any, how: Partition, one: RowSharded) -> Any:
    if how.outcome == SHARDED:
        if not isinstance(result, SparseTensor):
            raise UnsupportedError("the result would be dense over rows and columns of a sharded tensor")
        return one.with_local(result)
    if how.outcome == SUM:
        return sum_processes(result, one.group)
    if how.outcome == LOCAL:
        return result
    plan = one.rows if how.outcome == FOLD_ROWS else one.columns
    first = result.movedim(how.dim, 0)
    return plan.fold(first.contiguous(), one.wire).movedim(0, how.dim)
