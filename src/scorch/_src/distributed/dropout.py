"""Dropout of sharded rows and edges, drawn by their global numbers: the same for any number of ranks."""

from __future__ import annotations

import torch

from scorch._src.backends.base import draw_seeds
from scorch._src.distributed.communication.collectives import gather_numbers
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.name_hints import suggests_keywords
from scorch.errors import ArgumentError

Tensor = torch.Tensor


@suggests_keywords
def dropout(x: Tensor, p: float, like: RowSharded, seed: int, training: bool = True) -> Tensor:
    """Apply dropout to this rank's rows; the result does not depend on the number of ranks.

    Args:
        x: this rank's rows.
        p: the probability of dropping an element.
        like: the sharded tensor that the rows belong to.
        seed: the seed; what is dropped depends only on it, the global row and the column.
        training: whether to drop anything.

    Returns:
        This rank's rows, with elements dropped and the others scaled.

    Raises:
        ArgumentError: ``p`` is not a probability.

    Example:

        >>> import torch, scorch, scorch.distributed as sd
        >>> A = sd.shard(scorch.from_torch(torch.eye(3), format="csr"))
        >>> sd.dropout(torch.ones(3, 4), 0.5, A, seed=0).shape
        torch.Size([3, 4])
    """
    if not 0 <= p <= 1:
        raise ArgumentError(f"p must be between 0 and 1, but got {p}")
    if not training or not p:
        return x
    like.rows.check("x", x)
    rows = like.order.to(x.device)
    width = x[:1].numel() if len(x) else 1
    places = rows[:, None] * width + torch.arange(width, device=x.device)
    kept = (_uniform(places, seed) >= p).reshape(x.shape)
    return torch.where(kept, x / (1 - p) if p < 1 else x, 0.0)


def _uniform(places: Tensor, seed: int) -> Tensor:
    """Return a number between 0 and 1 for each position, by the mixing function of SplitMix64."""
    z = places * -7046029254386353131 + (seed * 6364136223846793005 + 1442695040888963407) % (1 << 63)
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        z = (z ^ _shift_right(z, shift)) * factor
    return _shift_right(z ^ _shift_right(z, 31), 11).to(torch.float64) * 2.0**-53


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Shift as if integers had no sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def draw_edges(adj: RowSharded, targets: Tensor, sources: Tensor, heads: int, p: float) -> Tensor:
    """Return which edges of each head are kept; a draw depends only on the global edge.

    ``targets`` and ``sources`` have the local numbers of the ends of each edge. Rank 0 draws the seed from
    PyTorch's generator.
    """
    (seed,) = draw_seeds(targets.device, 0, 1 << 62)
    (seed, *_), *_ = gather_numbers([seed], adj.group, adj.rows.ghosts)
    rows, columns = _original_numbers(adj)
    places = rows[targets.to(torch.int64)] * adj.shape[1] + columns[sources.to(torch.int64)]
    each = places[:, None] * heads + torch.arange(heads, device=places.device)
    return _uniform(each, seed) >= p


def _original_numbers(adj: RowSharded) -> tuple[Tensor, Tensor]:
    """Return the numbers of local rows and columns, including halos, before the graph was partitioned."""
    found: tuple[Tensor, Tensor] | None = adj.kept.get("numbers")
    if found is None:
        rows = adj.order
        if adj.columns.order is not None:
            (columns,) = adj.columns.extend([adj.columns.order.numbers])
        else:
            columns = adj.columns.to_global(torch.arange(adj.columns.size, device=rows.device))
        found = adj.kept["numbers"] = rows, columns
    return found
