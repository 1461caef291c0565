"""Reorder the rows of a square matrix, so that ranks need few rows of each other."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.devices import HOST
from scorch._src.distributed.communication.agreement import agree, validating
from scorch._src.distributed.communication.collectives import size_of
from scorch._src.distributed.communication.moves import RowMove, move_to_parts
from scorch._src.distributed.communication.replicate import sum_over
from scorch._src.distributed.cuts import check_features, work_of
from scorch._src.distributed.partition.choose import scramble
from scorch._src.distributed.partition.labels import cut_order, divide_by_labels
from scorch._src.distributed.partition.level import Level, level_of
from scorch._src.distributed.partition.metis import check_metis, divide_by_metis
from scorch._src.distributed.partition.one_process import solve_in_one
from scorch._src.distributed.partition.orders import cuthill_mckee
from scorch._src.distributed.repartition import as_parts, describe_options, is_square, move_tensor
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.name_hints import suggests_keywords
from scorch._src.storage.coordinates import numbered_entries
from scorch.errors import ArgumentError, OperandError, ShapeError, is_integer

Tensor = torch.Tensor
METHODS = ("label", "metis", "rcm", "hash")


@suggests_keywords
def partition(
    A: RowSharded,
    method: Any = "label",
    *,
    parts: int | None = None,
    features: Sequence[int] = (),
    imbalance: float = 0.03,
) -> RowSharded:
    """Permute the rows and columns of a square matrix alike, so that the halos are small.

    Each rank owns one part. Dense tensors must follow the same order: ``A.rows_of(x)`` of the result selects
    this rank's rows from all rows in their original order.

    Args:
        A: a square sharded matrix whose rows and columns have the same cuts.
        method: ``"label"``, distributed multilevel label propagation; ``"metis"``, if pymetis is installed,
            and ``"rcm"``, reverse Cuthill-McKee, on one rank that gathers the sparsity pattern; ``"hash"``,
            random; or a tensor with the part of each row of this rank, or of all rows.
        parts: the number of parts, a multiple of the number of ranks, each of which owns several.
        features: the widths of the layers, as in ``cuts``, to weigh rows against entries.
        imbalance: how much more than an even share of the work a part may have, for ``"label"``.

    Returns:
        The permuted matrix; ``order`` has the original numbers of its rows. ``gather`` and checkpoints keep
        the new numbers.

    Raises:
        OperandError: ``A`` is not sharded.
        ShapeError: rows and columns are cut differently.
        ArgumentError: ``method`` is unknown, or ``parts`` is not a multiple of the number of ranks.

    Example:

        >>> import torch, scorch, scorch.distributed as sd
        >>> A = sd.shard(scorch.from_torch(torch.eye(4), format="csr"))
        >>> sd.partition(A, "hash").shape
        (4, 4)
    """
    if not isinstance(A, RowSharded):
        raise OperandError(
            f"partition expected a sharded tensor, but got {type(A).__name__}; shard it first: sd.shard(S)"
        )
    is_named = isinstance(method, str)
    with validating(A.group, "partition"):
        count = _count_of(parts, size_of(A.group))
        _check_method(A, method)
        check_features(features)
        if not isinstance(imbalance, numbers.Real) or not imbalance >= 0:
            raise ArgumentError(f"imbalance must be a non-negative number, but got {imbalance!r}")
        given = None if is_named else as_parts("method", method, A, count)
    options = {"parts": count, "features": list(features), "imbalance": imbalance}
    facts = {"shape": A.shape, "method": method if is_named else "a tensor", **options}
    agree(A.group, "partition", facts, describe_options)
    if given is not None:
        move = move_to_parts(given, count, A.group)
    elif method == "rcm":
        move = _move_to_order(_level(A, features), count)
    else:
        move = move_to_parts(_parts_by(method, A, count, features, imbalance), count, A.group)
    return move_tensor(A, move, move.cuts, renumbers=True).tensor


def _check_method(A: RowSharded, method: Any) -> None:
    if A.ndim != 2 or not is_square(A):
        raise ShapeError(
            f"partition requires a square matrix whose rows and columns have the same cuts, but got shape "
            f"{A.shape}; use repartition to move only the rows"
        )
    if isinstance(method, str) and method not in METHODS:
        raise ArgumentError(
            f"method must be a tensor of parts or one of {', '.join(METHODS)}, but got {method!r}"
        )
    if method == "metis":
        check_metis()


def _count_of(parts: int | None, ranks: int) -> int:
    if parts is None:
        return ranks
    if not is_integer(parts, 1) or parts % ranks:
        raise ArgumentError(f"parts must be a multiple of the number of ranks, {ranks}, but got {parts!r}")
    return parts


def _parts_by(method: str, A: RowSharded, count: int, features: Sequence[int], imbalance: float) -> Tensor:
    """Return the part of each row of this rank."""
    if method == "hash":
        return scramble(A.order, 0) % count
    if method == "metis":
        return solve_in_one(_level(A, features), lambda whole: divide_by_metis(whole, count))
    return divide_by_labels(_level(A, features), count, imbalance)


def _level(A: RowSharded, features: Sequence[int]) -> Level:
    """Return the graph of a matrix: an edge for each entry, in both directions, and the work of each row."""
    (rows, columns), _ = numbered_entries(A.local.storage.pattern)
    rows, columns = rows.to(torch.int64), columns.to(torch.int64)
    lengths = A.rows.fold(torch.bincount(rows, minlength=A.rows.size))
    ends = A.rows.to_global(rows), A.columns.to_global(columns)
    sizes = work_of(lengths, features).to(torch.int64)
    return level_of(ends, torch.ones_like(rows), sizes, A.rows.cuts, A.group)


def _move_to_order(level: Level, count: int) -> RowMove:
    """Return how rows move that are numbered in reverse Cuthill-McKee order and cut by their work."""

    def solve(whole: Level) -> Tensor:
        order = cuthill_mckee(whole).flip(0)
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=order.device)
        return places * count + cut_order(whole, order, count)

    found = solve_in_one(level, solve)
    own = torch.bincount(found % count, minlength=count)
    ends = torch.cat([own.new_zeros(1), sum_over(own, level.group).cumsum(0)]).to(HOST)
    return RowMove(found // count, ends[:: count // size_of(level.group)], level.group)
