"""Functions that take places do what they do on dense tensors, and refuse what those refuse.

Places are negative, too large or far away, sources have other shapes and dtypes: whatever dense torch accepts
has the same result, and whatever it refuses is refused with an error of the same type. Every sparse result is
what its format promises.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import scorch
from index_calls import KINDS, Call, Make, as_sparse, draw_call
from scorch import SparseTensor
from scorch._src.ops.movement.index import MIN_TRANSPOSED
from scorch.errors import DensityError, UnsupportedError
from validity import check_storage, dense_of


def outcome(call: Call, make: Make) -> tuple[Any, Exception | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a function is in beta, or uint8 no longer a mask
        try:
            return call.run(make), None
        except Exception as error:
            return None, error


def is_missing(refused: Exception) -> bool:
    """Whether torch has no kernel for a dtype, which is no reason to refuse."""
    return isinstance(refused, NotImplementedError) and "not implemented for '" in str(refused)


def check_call(seed: int, name: str) -> bool:
    """Whether a drawn call was accepted; fails where dense and sparse tensors differ."""
    call, draw = draw_call(seed, name)
    truth, refused = outcome(call, torch.clone)
    found, error = outcome(call, as_sparse(draw))
    said = f"seed {seed}: {call.text}"
    if refused is not None:
        assert error is not None or is_missing(refused), f"{said}\naccepted, but torch says: {refused!r}"
        assert error is None or isinstance(error, type(refused)), f"{said}\n{error!r}, but torch: {refused!r}"
        return False
    if isinstance(error, UnsupportedError | DensityError):
        return False
    assert error is None, f"{said}\n{error!r}"
    if isinstance(found, SparseTensor):
        check_storage(found)
        found = dense_of(found)
    assert found.dtype == truth.dtype and torch.equal(found, truth), f"{said}\n{found}\n{truth}"
    return True


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", sorted(KINDS))
def test_places_mean_what_they_mean_on_dense_tensors(name: str, cases: int) -> None:
    accepted = sum(check_call(seed, name) for seed in range(max(40, cases // 5)))
    assert accepted, "no call was accepted, so no result was compared"


SQUARE = torch.arange(9.0).reshape(3, 3)


@pytest.mark.parametrize("place", [-1, -3, 3, 2**40, -(2**40)])
def test_entries_outside_of_the_shape_are_never_made(place: int) -> None:
    """The calls that once gave entries outside of the tensor, lost data, or ended the process."""
    S = scorch.from_torch(SQUARE, format="csr")
    index, source = torch.tensor([0, place]), torch.ones(2, 3)
    table = index[:, None].expand(2, 3)
    for name, arguments in {
        "index_add": (0, index, source),
        "index_copy": (0, index, source),
        "index_reduce": (0, index, source, "amax"),
        "scatter": (0, table, source),
        "scatter_add": (0, table, source),
        "scatter_reduce": (0, table, source, "sum"),
    }.items():
        with pytest.raises((IndexError, RuntimeError)):
            getattr(SQUARE, name)(*arguments)
        with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):
            getattr(S, name)(*arguments)
    torch.testing.assert_close(S.to_dense(), SQUARE)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_what_lies_across_a_large_matrix_is_selected(form: str) -> None:
    draw = torch.Generator().manual_seed(0)
    dense = torch.rand(150, 120, generator=draw)
    dense[dense < 0.3] = 0
    S = scorch.from_torch(dense, format=form)
    assert S.nnz > MIN_TRANSPOSED
    for dim in (0, 1):
        index = torch.randint(0, dense.shape[dim], (200,), generator=draw)
        found = torch.index_select(S, dim, index)
        check_storage(found)
        assert found.format == S.format
        assert torch.equal(found.to_dense(), torch.index_select(dense, dim, index))
        assert torch.equal(
            torch.index_select(S, dim, index[:0]).to_dense(), dense.index_select(dim, index[:0])
        )
        with pytest.raises(IndexError):
            torch.index_select(S, dim, torch.tensor([dense.shape[dim]]))
        with pytest.raises(IndexError):
            torch.index_select(S, dim, torch.tensor([-1]))
