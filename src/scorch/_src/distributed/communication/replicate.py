"""Collectives whose result is the same on all ranks: sums, maxima and gathered rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from scorch._src.distributed.communication.agreement import compare
from scorch._src.distributed.communication.budget import check_budget
from scorch._src.distributed.communication.collectives import (
    Exchange,
    Group,
    Handle,
    as_bytes,
    carrier,
    gather_numbers,
    rank_in,
    row_bytes,
    size_of,
)

Tensor = torch.Tensor
REDUCE, GATHER = "reduction over ranks", "gathering of rows"


def sum_over(array: Tensor, group: Group) -> Tensor:
    """Return the sum of an array over all ranks, bitwise identical on each and in every run."""
    result = array.clone(memory_format=torch.contiguous_format)
    if size_of(group) > 1:
        _reduce(torch.view_as_real(result) if result.is_complex() else result, dist.ReduceOp.SUM, group)
    return result


def largest_over(array: Tensor, group: Group) -> Tensor:
    """Return the elementwise maximum of an array over all ranks."""
    result = array.clone(memory_format=torch.contiguous_format)
    if size_of(group) > 1:
        _reduce(result, dist.ReduceOp.MAX, group)
    return result


def _reduce(array: Tensor, op: Any, group: Group) -> None:
    size = size_of(group)
    compare(group, REDUCE, (tuple(array.shape), array.dtype), array.device, _describe)
    moved = 2 * (size - 1) * array.numel() * array.element_size() // size  # around a ring
    check_budget(REDUCE, moved)
    part = array.to(carrier(group, array.device))
    Handle(
        Exchange(REDUCE, moved, moved, size - 1),
        group,
        lambda: [dist.all_reduce(part, op, group=group, async_op=True)],
        (array, part),
    ).wait()


def _describe(facts: tuple[tuple[int, ...], torch.dtype]) -> str:
    return f"a tensor of shape {facts[0]} and dtype {facts[1]}"


def gather_rows(rows: Tensor, group: Group) -> Tensor:
    """Return the rows of all ranks, concatenated, on every rank."""
    if size_of(group) == 1:
        return rows.clone()
    compare(group, GATHER, (tuple(rows.shape[1:]), rows.dtype), rows.device, _describe_rows)
    counts = [count for (count,) in gather_numbers([len(rows)], group, rows)]
    here = carrier(group, rows.device)
    out = rows.new_empty((sum(counts), *rows.shape[1:]), device=here)
    rank, width, others = rank_in(group), row_bytes(rows), len(counts) - 1
    received = (sum(counts) - counts[rank]) * width
    check_budget(GATHER, (sum(counts) - min(counts)) * width)
    parts = out.split(counts)
    parts[rank].copy_(rows)
    exchange = Exchange(GATHER, counts[rank] * others * width, received, others)
    Handle(exchange, group, lambda: [_start_broadcast(*pair, group) for pair in enumerate(parts)]).wait()
    return out.to(rows.device)


def _describe_rows(facts: tuple[tuple[int, ...], torch.dtype]) -> str:
    return f"rows of shape {facts[0]} and dtype {facts[1]}"


def _start_broadcast(sender: int, part: Tensor, group: Group) -> Any:
    return dist.broadcast(as_bytes(part), group=group, group_src=sender, async_op=True)
