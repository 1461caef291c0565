"""Which weights are kept: the largest, those of the largest blocks, N of every M, or as many drawn at random.

All functions give a mask for each weight, True where it is kept. How many are kept in each is a question of
its own: the same share everywhere, one threshold for all, or more in small layers (Erdős-Rényi).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scorch.errors import ArgumentError, ShapeError

Blocks = tuple[int, int] | None
DISTRIBUTIONS = ("uniform", "global", "erk")


def magnitude_mask(weight: torch.Tensor, density: float, blocks: Blocks = None) -> torch.Tensor:
    """The largest values of ``weight``, or its blocks with the largest norms; their number is exact."""
    return _spread(_largest(_scores(weight, blocks), density), weight, blocks)


def random_mask(weight: torch.Tensor, density: float, blocks: Blocks = None) -> torch.Tensor:
    """As many values or blocks, wherever they are."""
    return _spread(_largest(torch.rand_like(_scores(weight, blocks)), density), weight, blocks)


def nm_mask(weight: torch.Tensor, n: int, m: int) -> torch.Tensor:
    """The ``n`` largest of every ``m`` values that follow each other in a row."""
    if not 0 < n <= m:
        raise ArgumentError(f"nm=({n}, {m}): the first is how many of the second are kept, at least 1")
    if weight.shape[-1] % m:
        raise ShapeError(f"rows of {weight.shape[-1]} weights are not made of groups of {m}")
    groups = weight.detach().abs().unflatten(-1, (-1, m))
    kept = groups.topk(n, dim=-1).indices
    return torch.zeros_like(groups, dtype=torch.bool).scatter_(-1, kept, True).flatten(-2)


def global_masks(
    weights: Sequence[torch.Tensor], density: float, blocks: Blocks = None
) -> list[torch.Tensor]:
    """The largest of all weights together; blocks by the root of their mean square."""
    scores = [_scores(weight, blocks) for weight in weights]
    kept = _largest(torch.cat([score.reshape(-1) for score in scores]), density)
    parts = kept.split([score.numel() for score in scores])
    return [
        _spread(part.reshape(score.shape), weight, blocks)
        for part, score, weight in zip(parts, scores, weights, strict=True)
    ]


def erdos_renyi_densities(shapes: Sequence[Sequence[int]], density: float) -> list[float]:
    """Densities in proportion to (rows + columns) / (rows * columns), with ``density`` over all of them.

    Small layers are kept denser, none above 1 (Mocanu et al. 2018; Evci et al. 2020 call it ERK).

    >>> [round(share, 3) for share in erdos_renyi_densities([(300, 784), (100, 300), (10, 100)], 0.05)]
    [0.035, 0.1, 0.828]
    """
    sizes = [rows * columns for rows, columns in shapes]
    raw = [(rows + columns) / max(rows * columns, 1) for rows, columns in shapes]
    full: set[int] = set()
    while True:
        left = density * sum(sizes) - sum(sizes[place] for place in full)
        room = sum(raw[place] * sizes[place] for place in range(len(sizes)) if place not in full)
        scale = max(left, 0.0) / room if room else 0.0
        over = {p for p in range(len(sizes)) if p not in full and raw[p] * scale > 1}
        if not over:
            return [1.0 if place in full else raw[place] * scale for place in range(len(sizes))]
        full |= over


def _scores(weight: torch.Tensor, blocks: Blocks) -> torch.Tensor:
    """The magnitude of every value, or the root of the mean square of every block; a part of one counts."""
    size = weight.detach().abs()
    if blocks is None:
        return size
    rows, columns = blocks
    padding = (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows)
    squares = torch.nn.functional.pad(size.square(), padding)
    there = torch.nn.functional.pad(torch.ones_like(size), padding)
    total = squares.unflatten(1, (-1, columns)).unflatten(0, (-1, rows)).sum((1, 3))
    count = there.unflatten(1, (-1, columns)).unflatten(0, (-1, rows)).sum((1, 3))
    found: torch.Tensor = (total / count).sqrt()
    return found


def _largest(score: torch.Tensor, density: float) -> torch.Tensor:
    count = round(density * score.numel())
    found = torch.zeros(score.numel(), dtype=torch.bool, device=score.device)
    found[score.reshape(-1).topk(count, sorted=False).indices] = True
    return found.reshape(score.shape)


def _spread(kept: torch.Tensor, weight: torch.Tensor, blocks: Blocks) -> torch.Tensor:
    if blocks is None:
        return kept
    whole = kept.repeat_interleave(blocks[0], 0).repeat_interleave(blocks[1], 1)
    return whole[: weight.shape[0], : weight.shape[1]]
