"""Where the rows of a tensor are cut: one shard per rank, each with about the same work."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.devices import HOST
from scorch._src.distributed.communication.collectives import Group, gather_numbers, rank_in, size_of
from scorch._src.distributed.communication.replicate import sum_over
from scorch._src.name_hints import suggests_keywords
from scorch._src.storage.coordinates import numbered_entries
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, ShapeError, counted, is_integer

Tensor = torch.Tensor


def cut_evenly(rows: int, parts: int) -> Tensor:
    """Cut rows into parts whose numbers of rows differ by at most one."""
    return torch.tensor([rows * part // parts for part in range(parts + 1)], dtype=torch.int64, device=HOST)


def cut_by_work(lengths: Tensor, parts: int, features: Sequence[int] = ()) -> Tensor:
    """Cut rows of these lengths into parts of about the same work.

    ``features`` are the widths of the layers that rows pass through: an entry costs one multiplication for
    each number that it multiplies, a row one for each weight. Without them, a row costs as much as an entry.
    """
    work = torch.cumsum(work_of(lengths.to(HOST), features), 0)
    total = work[-1] if len(work) else work.new_zeros(())
    goals = total * torch.arange(1, parts, dtype=torch.float64, device=HOST) / parts
    # The border nearest to the goal: after the row that reaches it, or before.
    after = torch.searchsorted(work, goals)
    padded = torch.cat([work.new_zeros(1), work])
    low, high = padded[after.clamp(max=len(work))], padded[(after + 1).clamp(max=len(work))]
    inner = after + (high - goals < goals - low).to(torch.int64)
    begin, end = (inner.new_full((1,), border) for border in (0, len(lengths)))
    return torch.cat([begin, inner.clamp(max=len(lengths)), end]).cummax(0).values


def cut_together(
    lengths: Tensor, begin: int, rows: int, group: Group, features: Sequence[int] = ()
) -> Tensor:
    """Cut rows as ``cut_by_work`` does, where each rank knows the lengths of its rows, starting at
    ``begin``.

    Rows of the previous rank come before. All ranks get the same cuts.
    """
    parts, rank = size_of(group), rank_in(group)
    work = torch.cumsum(work_of(lengths, features), 0)
    own = int(work[-1]) if len(work) else 0
    totals = [total for (total,) in gather_numbers([own], group, lengths)]
    padded = torch.cat([work.new_zeros(1), work]) + sum(totals[:rank])
    goals = sum(totals) * torch.arange(1, parts, dtype=torch.float64, device=work.device) / parts
    after = sum_over(torch.searchsorted(padded[1:], goals), group)
    here = (after >= begin) & (after < begin + len(lengths))
    place = torch.where(here, after - begin, 0)
    low, high = padded[place], padded[(place + 1).clamp(max=len(lengths))]
    inner = after + sum_over((here & (high - goals < goals - low)).to(torch.int64), group)
    start, end = (inner.new_full((1,), border) for border in (0, rows))
    return torch.cat([start, inner.clamp(max=rows), end]).cummax(0).values.to(HOST)


def work_of(lengths: Tensor, features: Sequence[int]) -> Tensor:
    """Return the work of each row of these lengths, an integer."""
    lengths = lengths.to(torch.float64)
    if not features:
        return lengths + 1
    each = float(sum(features))
    dense = float(sum(a * b for a, b in itertools.pairwise(features))) or each
    return lengths * each + dense


@suggests_keywords
def cuts(tensor: SparseTensor, parts: int, *, features: Sequence[int] = ()) -> Tensor:
    """Return where to cut the rows of a sparse tensor into ``parts`` shards of about the same work.

    Args:
        tensor: the sparse tensor.
        parts: the number of shards.
        features: the widths of the layers, such as ``[128, 64, 40]``, to weigh rows against entries: dense
            layers cost as much for a row without neighbors as for a hub.

    Returns:
        ``parts + 1`` integers: where each shard begins, and the number of rows.

    Raises:
        ArgumentError: ``parts`` is not a positive integer.

    Example:

        >>> import torch, scorch, scorch.distributed as sd
        >>> S = scorch.from_torch(torch.tensor([[1., 1, 1], [0, 0, 1], [1, 0, 0]]), format="csr")
        >>> sd.cuts(S, 2)
        tensor([0, 1, 3])
    """
    if not is_integer(parts, 1):
        raise ArgumentError(f"parts must be a positive integer, but got {parts!r}")
    check_features(features)
    return cut_by_work(row_lengths(tensor), parts, list(features))


def row_lengths(tensor: SparseTensor) -> Tensor:
    """Return the number of entries in each row."""
    (rows, *_), _ = numbered_entries(tensor.storage.pattern)
    return torch.bincount(rows.to(torch.int64), minlength=tensor.shape[0])


def check_features(features: Any) -> None:
    """Refuse widths of layers that are not positive integers."""
    is_list = isinstance(features, Sequence) and not isinstance(features, str)
    if not is_list or not all(is_integer(width, 1) for width in features):
        raise ArgumentError(
            f"features must be the widths of the layers, such as [128, 64, 40], but got {features!r}"
        )


def as_integers(name: str, given: object, device: torch.device) -> Tensor:
    """Return integers that the user passed as a tensor."""
    try:
        found = torch.as_tensor(given, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(f"{name} must be integers, but got {given!r}") from None
    if found.numel() and (found.dtype.is_floating_point or found.dtype.is_complex):
        raise ArgumentError(f"{name} must be integers, but got dtype {found.dtype}")
    return found.to(torch.int64)


def as_cuts(name: str, given: object, rows: int, parts: int) -> Tensor:
    """Return validated cuts that the user passed: from 0 to the number of rows, never decreasing."""
    found = as_integers(name, given, HOST).reshape(-1)
    if len(found) != parts + 1:
        raise ArgumentError(
            f"{name} has {counted(len(found), 'element')}, but {counted(parts, 'rank')} need {parts + 1}: "
            "where each shard begins, and the number of rows"
        )
    if found[0] != 0 or found[-1] != rows or bool((found.diff() < 0).any()):
        raise ShapeError(f"{name} must increase from 0 to {rows}, but got {found.tolist()}")
    return found


def check_split(split: bool | int) -> None:
    """Refuse a limit of entries in a row that is none."""
    if not isinstance(split, int) or split < 0:
        raise ArgumentError(f"split must be True, False or a number of entries, but got {split!r}")


def owners_in(ids: Tensor, cuts: Tensor) -> Tensor:
    """Return the rank that owns each row."""
    return torch.searchsorted(cuts.to(ids.device).contiguous(), ids, right=True) - 1


def block_owners(
    rows: Tensor, columns: Tensor, row_cuts: Tensor, column_cuts: Tensor, replicas: int
) -> Tensor:
    """Return the rank of each entry: of the group of its row's owner, the one in its column's place."""
    return owners_in(rows, row_cuts) // replicas * replicas + owners_in(columns, column_cuts) % replicas
