"""What dense torch gives as the tensor itself or as a view, sparse tensors give so, or refuse to write to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import scorch
from scorch.errors import InPlaceError

ALIASES: dict[str, Callable[[Any], Any]] = {
    "to(dtype)": lambda x: x.to(x.dtype),
    "to(device)": lambda x: x.to("cpu"),
    "to(other)": lambda x: x.to(x),
    "cpu": lambda x: x.cpu(),
    "type_as": lambda x: x.type_as(x),
    "type": lambda x: x.type(x.dtype),
    "contiguous": lambda x: x.contiguous(),
    "conj": lambda x: x.conj(),
    "conj_physical": torch.conj_physical,
    "resolve_conj": lambda x: x.resolve_conj(),
    "resolve_neg": lambda x: x.resolve_neg(),
    "real": torch.real,
    ".real": lambda x: x.real,
    "ravel": lambda x: x.ravel(),
    "flatten": lambda x: x.flatten(),
    "reshape": lambda x: x.reshape(x.shape),
    "view": lambda x: x.view(x.shape),
    "view(dtype)": lambda x: x.view(x.dtype),
    "expand_as": lambda x: x.expand_as(x),
    "broadcast_to": lambda x: torch.broadcast_to(x, x.shape),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, x)[0],
    "atleast_1d": torch.atleast_1d,
    "atleast_2d": torch.atleast_2d,
    "atleast_3d": torch.atleast_3d,
    "positive": torch.positive,
    "sum_to_size": lambda x: x.sum_to_size(x.shape),
    "squeeze": lambda x: x.squeeze(),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "movedim": lambda x: x.movedim(0, 0),
    "adjoint": lambda x: x.adjoint(),
    "H": lambda x: x.H,
    "mT": lambda x: x.mT,
    "dropout": lambda x: F.dropout(x, 0.5, False),
    "dropout of none": lambda x: F.dropout(x, 0.0, True),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, False),
    "chunk": lambda x: x.chunk(1)[0],
    "tensor_split": lambda x: x.tensor_split(2)[0],
    "hsplit": lambda x: x.hsplit(1)[0],
    "unfold": lambda x: x.unfold(0, 1, 1),
    "narrow": lambda x: x.narrow(0, 0, 1),
    "diagonal": lambda x: torch.linalg.diagonal(x),
    "index": lambda x: x[...],
}


@pytest.mark.parametrize("learns", [False, True], ids=["plain", "learned"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("name", ALIASES)
def test_writes_reach_the_tensor_or_are_refused(name: str, dtype: torch.dtype, learns: bool) -> None:
    call = ALIASES[name]
    dense = torch.tensor([[1, 0, 2], [3, 4, 0]]).to(dtype)
    sparse = scorch.from_torch(dense, format="csr")
    if learns:
        if not (dtype.is_floating_point or dtype.is_complex):
            pytest.skip("has no gradients")
        dense, sparse = dense.requires_grad_() * 1, sparse.requires_grad_() * 1
    try:
        wanted = call(dense)
    except RuntimeError as refused:
        with pytest.raises(type(refused)):
            call(sparse)
        return
    found = call(sparse)
    assert (found is sparse) == (wanted is dense)
    with torch.no_grad():
        wanted.zero_()
        try:
            found.zero_()
        except InPlaceError as refused:
            assert dtype.is_complex or name == "view(dtype)"
            assert "clone()" in str(refused)
            return
    torch.testing.assert_close(sparse.detach().to_dense(), dense.detach())


OWN: dict[str, Callable[[Any], Any]] = {
    "roll": lambda x: x.roll(0, 0),
    "flip": lambda x: x.flip(()),
    "cat": lambda x: torch.cat([x]),
    "repeat": lambda x: x.repeat(1, 1),
    "tril": lambda x: x.tril(5),
    "index_select": lambda x: x.index_select(0, torch.arange(3)),
    "rows": lambda x: x[torch.arange(3)],
    "pad": lambda x: F.pad(x, (0, 0)),
    "clone": lambda x: x.clone(),
    "relu": torch.relu,
    "mul": lambda x: x * 1,
    "copy": lambda x: x.to(torch.float32, copy=True),
    "clamp": lambda x: x.clamp(-100, 100),
    "select_scatter": lambda x: x.select_scatter(x[0], 0, 0),
    "block_diag": lambda x: torch.block_diag(x),
    "rot90": lambda x: x.rot90(4),
}


@pytest.mark.parametrize("learns", [False, True], ids=["plain", "learned"])
@pytest.mark.parametrize("form", ["csr", "coo", "csc", "bsr(2,2)"])
@pytest.mark.parametrize("name", OWN)
def test_results_of_their_own_stay_apart(name: str, form: str, learns: bool) -> None:
    dense = torch.tensor([[1.0, 0, 2], [0, 3, 0], [4, 0, 5]])
    sparse = scorch.from_torch(dense, format=form).requires_grad_(learns)
    found = OWN[name](sparse)
    with torch.no_grad():
        found.mul_(2)
        found.fill_(7)
    torch.testing.assert_close(sparse.detach().to_dense(), dense)


@pytest.mark.parametrize("learns", [False, True], ids=["plain", "learned"])
@pytest.mark.parametrize("form", ["csr", "coo", "csc", "bsr(2,2)"])
def test_parts_of_complex_tensors_keep_the_format(form: str, learns: bool) -> None:
    dense = torch.tensor([[1 + 2j, 0, 2j], [0, 3 - 1j, 0], [4, 0, 5j]])
    sparse = scorch.from_torch(dense, format=form).requires_grad_(learns)
    calls: dict[str, Callable[[Any], Any]] = {
        "conj": torch.conj, "conj_physical": torch.conj_physical, "real": torch.real, "imag": torch.imag,
        "H": lambda x: x.H, "mH": lambda x: x.mH, "adjoint": torch.adjoint, "abs": torch.abs,
    }  # fmt: skip
    for name, call in calls.items():
        found, wanted = call(sparse), call(dense).resolve_conj()
        assert isinstance(found, scorch.SparseTensor) and found.nnz == sparse.nnz, name
        torch.testing.assert_close(found.detach().to_dense(), wanted)
        if learns:
            other = dense.clone().requires_grad_()
            weight = torch.arange(9.0).reshape(3, 3)
            (gradient,) = torch.autograd.grad((found * weight).sum().abs(), sparse)
            (expected,) = torch.autograd.grad((call(other) * weight).sum().abs(), other)
            stored = dense != 0  # blocks store zeros beside
            torch.testing.assert_close(
                torch.where(stored, gradient.to_dense(), 0), torch.where(stored, expected, 0)
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int16], ids=str)
def test_bits_of_views_are_read_as_other_dtypes(dtype: torch.dtype) -> None:
    """Whatever the dtype: whether a view can be taken depends on its own size alone."""
    dense = torch.tensor([[1, 0, 2], [0, 3, 0]]).to(dtype)
    other = {2: torch.float16, 4: torch.int32, 8: torch.float64}[dtype.itemsize]
    other = torch.int64 if other == dtype else other
    found = scorch.from_torch(dense, format="csr").T.view(other)
    assert isinstance(found, scorch.SparseTensor)
    torch.testing.assert_close(found.to_dense(), dense.T.view(other))
