"""Which weights ``scorch.sparsify`` prunes: its arguments, checked, and the masks that follow from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from scorch._src.dataclass import dataclass
from scorch._src.nn import prune
from scorch._src.nn.pruned.choose_storage import Masks
from scorch._src.nn.pruned.prunable import Part, parts_of
from scorch._src.nn.pruned.prune_further import prune_further
from scorch.errors import ArgumentError, is_integer

DEFAULT_SPARSITY = 0.9


@dataclass(frozen=True)
class Pruning:
    """Which weights are pruned, as ``sparsify`` takes it."""

    sparsity: float
    blocks: tuple[int, int] | None
    nm: tuple[int, int] | None
    method: str
    distribution: str

    def __post_init__(self) -> None:
        sparsity, is_plain = self.sparsity, self.method == "magnitude" and self.distribution == "uniform"
        if isinstance(sparsity, bool) or not isinstance(sparsity, (int, float)) or not 0 <= sparsity <= 1:
            raise ArgumentError(
                f"sparsity must be between 0 and 1, the fraction of weights to prune, but got {sparsity!r}"
            )
        for name, pair, least in (("blocks", self.blocks, 1), ("nm", self.nm, 0)):
            is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
            if pair is not None and not (is_pair and all(is_integer(n, least) for n in pair)):
                raise ArgumentError(f"{name} must be a pair of positive integers, but got {pair!r}")
        if self.nm is not None and (self.blocks is not None or not is_plain):
            raise ArgumentError(
                "nm keeps the largest weights of each group; it cannot be combined with blocks or "
                "another method"
            )
        for name, allowed in (("method", ("magnitude", "random")), ("distribution", prune.DISTRIBUTIONS)):
            if getattr(self, name) not in allowed:
                raise ArgumentError(
                    f"{name} must be one of {', '.join(allowed)}, but got {getattr(self, name)!r}"
                )
        if self.distribution == "global" and self.method == "random":
            raise ArgumentError(
                "distribution='global' compares magnitudes; with method='random', use 'uniform' or 'erk'"
            )

    def masks(self, layers: Sequence[torch.nn.Module]) -> list[Masks]:
        """Return the masks of each layer's matrices; masks of PyTorch's pruning are used as they are."""
        parts = [parts_of(layer) for layer in layers]
        existing = {part: _existing_mask(part) for of_layer in parts for part in of_layer}
        new = iter(self._new_masks([part.matrix for part, mask in existing.items() if mask is None]))
        masks = {part: next(new) if mask is None else mask for part, mask in existing.items()}
        return [{part.table: masks[part] for part in of_layer} for of_layer in parts]

    def prune_further(self, layers: Iterable[torch.nn.Module]) -> set[torch.nn.Module]:
        """Prune sparse layers in place, within their patterns; return those that stay as they are."""
        largest = replace(self, method="magnitude")
        group = 1 if self.nm is None else self.nm[1]
        return prune_further(layers, group, self.method == "random", largest._new_masks)

    def _new_masks(self, weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        density = 1 - self.sparsity
        if self.nm is not None:
            return [prune.nm_mask(weight, *self.nm) for weight in weights]
        if self.distribution == "global":
            return prune.global_masks(weights, density, self.blocks) if weights else []
        make_mask = prune.magnitude_mask if self.method == "magnitude" else prune.random_mask
        shares = [density] * len(weights)
        if self.distribution == "erk":
            shares = prune.erdos_renyi_densities([tuple(weight.shape) for weight in weights], density)
        return [make_mask(weight, share, self.blocks) for weight, share in zip(weights, shares, strict=True)]


def pruning_of(
    sparsity: float | None,
    blocks: tuple[int, int] | int | None,
    nm: tuple[int, int] | str | None,
    pattern: str | None,
    method: str,
    distribution: str,
) -> Pruning:
    """Return what the arguments of ``sparsify`` ask for."""
    if pattern is not None and nm is not None:
        raise ArgumentError("pass pattern or nm, not both")
    if pattern is not None:
        nm = _parse_pattern("pattern", pattern)
    pair = _parse_pattern("nm", nm) if isinstance(nm, str) else nm
    shape = (blocks, blocks) if isinstance(blocks, int) else blocks
    return Pruning(_requested_sparsity(sparsity, pair), shape, pair, method, distribution)


def _requested_sparsity(sparsity: Any, nm: Any) -> Any:
    """Return the sparsity to reach; ``nm`` implies one, which another would contradict."""
    if not isinstance(nm, (tuple, list)) or len(nm) != 2 or not all(is_integer(n, 1) for n in nm):
        return DEFAULT_SPARSITY if sparsity is None else sparsity  # Pruning says what is wrong
    if nm[0] > nm[1]:
        raise ArgumentError(
            f"N:M keeps N of every M weights, so N must be at most M, but got {nm[0]}:{nm[1]}; "
            f"did you mean '{nm[1]}:{nm[0]}'?"
        )
    implied = 1 - nm[0] / nm[1]
    if sparsity is not None and sparsity != implied:
        raise ArgumentError(
            f"keeping {nm[0]} of every {nm[1]} weights is a sparsity of {implied:.4g}, not {sparsity!r}; "
            "pass sparsity or the pattern, not both"
        )
    return implied


def _parse_pattern(name: str, pattern: str) -> tuple[int, int]:
    """Return N and M of a text such as ``"2:4"``."""
    found = re.fullmatch(r"(\d+):(\d+)", pattern) if isinstance(pattern, str) else None
    if found is None:
        raise ArgumentError(f"{name} must be of the form 'N:M', such as '2:4', but got {pattern!r}")
    return int(found[1]), int(found[2])


def _existing_mask(part: Part) -> torch.Tensor | None:
    mask = getattr(part.owner, f"{part.name}_mask", None)
    return None if mask is None else part.as_matrix(mask) != 0
