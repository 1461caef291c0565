"""Choose which weights to keep: the largest, those of the largest blocks, N of every M, or random ones.

All functions return a mask for each weight, True for weights to keep. How many are kept in each layer is a
separate choice: the same fraction in every layer, one threshold for all, or more in small layers
(Erdős-Rényi).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scorch._src.name_hints import suggests_keywords
from scorch.errors import ArgumentError, OperandError, ShapeError

Blocks = tuple[int, int] | None
DISTRIBUTIONS = ("uniform", "global", "erk")
LOWER_BITS = 16  # of a score, which differ within a bucket


def magnitude_mask(weight: torch.Tensor, density: float, blocks: Blocks = None) -> torch.Tensor:
    """Keep the largest values of ``weight``, or its blocks with the largest norms, in exact number."""
    return _expand_blocks(_select_largest(_scores(weight, blocks), density), weight, blocks)


def random_mask(weight: torch.Tensor, density: float, blocks: Blocks = None) -> torch.Tensor:
    """Keep the same number of values or blocks, drawn at random."""
    return _expand_blocks(_select_largest(torch.rand_like(_scores(weight, blocks)), density), weight, blocks)


def nm_mask(weight: torch.Tensor, n: int, m: int) -> torch.Tensor:
    """Keep the ``n`` largest of every ``m`` consecutive values of a row."""
    if not 0 < n <= m:
        raise ArgumentError(
            f"nm=({n}, {m}) must be (N, M) with 1 <= N <= M: how many of every M weights to keep"
        )
    if weight.shape[-1] % m:
        raise ShapeError(f"rows of {weight.shape[-1]} weights cannot be divided into groups of {m}")
    groups = weight.detach().abs().unflatten(-1, (-1, m))
    largest = groups.topk(n, dim=-1).indices
    return torch.zeros_like(groups, dtype=torch.bool).scatter_(-1, largest, True).flatten(-2)


def global_masks(
    weights: Sequence[torch.Tensor], density: float, blocks: Blocks = None
) -> list[torch.Tensor]:
    """Keep the largest weights over all layers; blocks by their root mean square."""
    scores = [_scores(weight, blocks) for weight in weights]
    selected = _select_largest(torch.cat([score.reshape(-1) for score in scores]), density)
    selected_by_weight = selected.split([score.numel() for score in scores])
    return [
        _expand_blocks(selection.reshape(score.shape), weight, blocks)
        for selection, score, weight in zip(selected_by_weight, scores, weights, strict=True)
    ]


@suggests_keywords
def erdos_renyi_densities(shapes: Sequence[Sequence[int]], density: float) -> list[float]:
    """Return densities for layers in proportion to (rows + columns) / (rows * columns).

    Small layers are kept denser (Mocanu et al. 2018; Evci et al. 2020 call it ERK).

    Args:
        shapes: the shape of the weight of each layer.
        density: the density over all weights together.

    Returns:
        The density of each layer, at most 1.

    Raises:
        ArgumentError: ``density`` is not between 0 and 1.
        OperandError: ``shapes`` are not those of matrices.

    Example:

        >>> densities = erdos_renyi_densities([(300, 784), (100, 300), (10, 100)], 0.05)
        >>> [round(density, 3) for density in densities]
        [0.038, 0.111, 0.919]
    """
    if isinstance(shapes, (torch.nn.Module, torch.Tensor)) or not all(map(_is_shape, shapes)):
        raise OperandError(
            "erdos_renyi_densities expected the shapes of matrices, as in [(300, 784), (100, 300)]; to prune "
            "a model so, use scorch.sparsify(model, sparsity=0.9, distribution='erk')"
        )
    if not 0 <= density <= 1:
        raise ArgumentError(f"density must be between 0 and 1, but got {density!r}")
    sizes = [rows * columns for rows, columns in shapes]
    raw = [(rows + columns) / max(rows * columns, 1) for rows, columns in shapes]
    full: set[int] = set()
    while True:
        remaining = density * sum(sizes) - sum(sizes[layer] for layer in full)
        capacity = sum(raw[layer] * sizes[layer] for layer in range(len(sizes)) if layer not in full)
        scale = max(remaining, 0.0) / capacity if capacity else 0.0
        over = {p for p in range(len(sizes)) if p not in full and raw[p] * scale > 1}
        if not over:
            return [1.0 if layer in full else raw[layer] * scale for layer in range(len(sizes))]
        full |= over


def _is_shape(shape: object) -> bool:
    return isinstance(shape, Sequence) and len(shape) == 2 and all(isinstance(size, int) for size in shape)


def _scores(weight: torch.Tensor, blocks: Blocks) -> torch.Tensor:
    """Score every value by magnitude, or every block by its root mean square."""
    magnitude = weight.detach().abs()
    if blocks is None:
        return magnitude
    squares, sizes = sum_blocks(magnitude.square(), blocks), sum_blocks(torch.ones_like(magnitude), blocks)
    return (squares / sizes).sqrt()


def sum_blocks(values: torch.Tensor, blocks: tuple[int, int]) -> torch.Tensor:
    """Sum the elements of each block of a matrix."""
    rows, columns = blocks
    padding = (0, -values.shape[1] % columns, 0, -values.shape[0] % rows)
    padded = torch.nn.functional.pad(values, padding)
    sums: torch.Tensor = padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows)).sum((1, 3))
    return sums


def _select_largest(score: torch.Tensor, density: float) -> torch.Tensor:
    """Select the largest of the scores, which are non-negative, in exact number."""
    count = round(density * score.numel())
    flat = score.reshape(-1)
    if score.dtype == torch.float32 and 0 < count < score.numel():
        return _select_by_bits(flat, count).reshape(score.shape)
    mask = torch.zeros(score.numel(), dtype=torch.bool, device=score.device)
    mask[flat.topk(count, sorted=False).indices] = True
    return mask.reshape(score.shape)


def _select_by_bits(score: torch.Tensor, count: int) -> torch.Tensor:
    """Do so by counting: non-negative floats are in the order of their bits, read as integers."""
    upper = score.contiguous().view(torch.int32) >> LOWER_BITS
    larger = torch.bincount(upper, minlength=1 << (31 - LOWER_BITS)).flip(0).cumsum(0).flip(0)
    bucket = int((larger >= count).nonzero()[-1])  # whose scores and all larger ones are enough
    mask = upper > bucket
    candidates = (upper == bucket).nonzero().squeeze(1)
    rest = count - int(mask.sum())
    mask[candidates[score[candidates].topk(rest, sorted=False).indices]] = True
    return mask


def _expand_blocks(mask: torch.Tensor, weight: torch.Tensor, blocks: Blocks) -> torch.Tensor:
    if blocks is None:
        return mask
    expanded = mask.repeat_interleave(blocks[0], 0).repeat_interleave(blocks[1], 1)
    return expanded[: weight.shape[0], : weight.shape[1]]
