"""Which weights are kept."""

from __future__ import annotations

import pytest
import torch

from scorch import errors
from scorch._src.nn import prune


def test_the_largest_values_stay() -> None:
    weight = torch.randn(20, 30)
    mask = prune.magnitude_mask(weight, 0.1)
    assert int(mask.sum()) == 60
    assert float(weight[mask].abs().min()) >= float(weight[~mask].abs().max())


def test_the_largest_blocks_stay_and_a_part_of_one_counts_as_one() -> None:
    weight = torch.full((5, 7), 0.1)
    weight[4, 6] = 9.0  # a block of one place
    weight[:2, :3] = 5.0
    mask = prune.magnitude_mask(weight, 2 / 9, (2, 3))
    expected = torch.zeros(5, 7, dtype=torch.bool)
    expected[4, 6] = True
    expected[:2, :3] = True
    assert torch.equal(mask, expected)


def test_n_of_every_m() -> None:
    weight = torch.randn(6, 16)
    groups = prune.nm_mask(weight, 2, 4).reshape(6, 4, 4)
    assert bool((groups.sum(-1) == 2).all())
    kept = torch.where(groups, weight.reshape(6, 4, 4).abs(), torch.inf).amin(-1)
    gone = torch.where(groups, -torch.inf, weight.reshape(6, 4, 4).abs()).amax(-1)
    assert bool((kept >= gone).all())


def test_one_threshold_for_all() -> None:
    weights = [torch.randn(8, 8), 10 * torch.randn(4, 4), torch.zeros(3, 5)]
    masks = prune.global_masks(weights, 0.2)
    assert sum(int(mask.sum()) for mask in masks) == round(0.2 * (64 + 16 + 15))
    kept = min(float(w[m].abs().min()) for w, m in zip(weights, masks, strict=True) if bool(m.any()))
    gone = max(float(w[~m].abs().max()) for w, m in zip(weights, masks, strict=True) if not bool(m.all()))
    assert kept >= gone


@pytest.mark.parametrize("density", [0.0, 0.01, 0.05, 0.3, 0.9, 1.0])
def test_erdos_renyi_keeps_as_many_as_asked_for(density: float) -> None:
    shapes = [(300, 784), (100, 300), (10, 100)]
    found = prune.erdos_renyi_densities(shapes, density)
    assert all(0 <= share <= 1 + 1e-9 for share in found)
    total = sum(share * rows * columns for share, (rows, columns) in zip(found, shapes, strict=True))
    assert total == pytest.approx(density * sum(rows * columns for rows, columns in shapes))
    assert found == sorted(found)


def test_erdos_renyi_refuses_what_is_no_density() -> None:
    with pytest.raises(errors.ArgumentError, match="density must be between 0 and 1, but got 3"):
        prune.erdos_renyi_densities([(2, 2)], 3)


def test_wrong_groups() -> None:
    with pytest.raises(errors.ArgumentError, match="1 <= N <= M"):
        prune.nm_mask(torch.ones(4, 4), 5, 4)
    with pytest.raises(errors.ShapeError, match="groups of 4"):
        prune.nm_mask(torch.ones(4, 6), 2, 4)
