"""Cases at the edge that random calls of torch have found."""

from __future__ import annotations

import pytest
import torch

import scorch
from on_device import is_on_device
from scorch.errors import InPlaceError


@pytest.mark.parametrize("form", ["csr", "coo", "csf"])
@pytest.mark.parametrize(
    "key",
    [
        (0, 0, slice(None, None, 2)),
        (0, slice(None), 0),
        (0, 0, torch.tensor(0)),
        (0, None, 0, 0),
        (..., 0, 0, 0),
        (slice(None), slice(None), slice(None)),
        (slice(0, 1), 0),
        (None, 0),
    ],
)
def test_a_view_of_all_of_a_view_is_written_through(key, form):
    for shape in ((1, 1, 1), (2, 1, 3)):
        S = scorch.from_torch(torch.zeros(shape), format=form)
        wanted = torch.zeros(shape)
        S[key] = 2.0
        wanted[key] = 2.0
        assert torch.equal(S.to_dense(), wanted)


@pytest.mark.parametrize("function", [torch.remainder, torch.floor_divide, torch.fmod])
def test_whole_numbers_are_divided_where_there_are_some(function):
    empty = scorch.from_torch(torch.zeros(2, 0, 3, dtype=torch.int64), format="csf")
    row = scorch.from_torch(torch.zeros(1, 3, dtype=torch.int64), format="csr")
    assert function(row, empty).shape == function(empty, row).shape == (2, 0, 3)
    dense = torch.tensor([[-3], [2], [5]])
    for form in ("coo", "bsr(2,2)", "csc"):
        S = scorch.from_torch(dense, format=form)
        assert torch.equal(function(S, S).to_dense(), function(dense, dense))
        assert torch.equal(function(row[0], S).to_dense(), function(torch.zeros(3, dtype=torch.int64), dense))
    if not is_on_device():  # which gives some number, of dense tensors too
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            function(S, row)


def test_complex_numbers():
    dense = torch.tensor([[1 + 2j, 0], [0, -1j]])
    S = scorch.from_torch(dense, format="csr")
    torch.testing.assert_close(torch.logsumexp(S, 1), torch.logsumexp(dense, 1))
    with pytest.raises(InPlaceError, match="abs_"):
        S.abs_()
    assert torch.equal(S.to_dense(), dense)
