"""Every function of torch that makes a tensor takes ``format=``, and means the same with it."""

import numpy as np
import pytest
import scipy.sparse
import torch

import scorch
from scorch.errors import (
    ArgumentError,
    DensityError,
    FormatError,
    IndexRangeError,
    OperandError,
    ScorchError,
    ShapeError,
)

SQUARE = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0], [4.0, 0.0, 0.0]])
VECTOR = torch.tensor([1.0, 0.0, 3.0])
MATRICES = {  # name: arguments, keywords
    "zeros": ((3, 4), {}),
    "ones": ((3, 4), {}),
    "empty": ((0, 4), {}),
    "full": (((3, 4), 2.5), {}),
    "eye": ((4, 3), {}),
    "tensor": (([[1.0, 0.0], [0.0, 2.0]],), {}),
    "as_tensor": (([[1.0, 0.0], [0.0, 2.0]],), {}),
    "asarray": (([[1.0, 0.0], [0.0, 2.0]],), {"dtype": torch.float64}),
    "from_numpy": ((SQUARE.numpy(),), {}),
    "diag": ((VECTOR,), {}),
    "diagflat": ((SQUARE,), {"offset": -2}),
    "diag_embed": ((VECTOR, 1), {}),
    "zeros_like": ((SQUARE,), {}),
    "ones_like": ((SQUARE,), {}),
    "full_like": ((SQUARE, 3.0), {}),
    "bernoulli": (((SQUARE > 0).float(),), {}),  # 0 and 1 for certain
}
VECTORS = {
    "arange": ((1, 9, 3), {}),
    "linspace": ((-1, 1, 5), {}),
    "logspace": ((0, 2, 3), {"base": 2.0}),
    "diag": ((SQUARE, 1), {}),
}
RANDOM = {
    "rand": ((4, 5), {}),
    "randn": ((4, 5), {}),
    "randint": ((1, 7, (4, 5)), {}),
    "normal": ((0.0, 1.0, (4, 5)), {}),
    "rand_like": ((torch.zeros(4, 5),), {}),
    "randn_like": ((torch.zeros(4, 5),), {}),
    "randint_like": ((torch.zeros(4, 5), 1, 7), {}),
}


def same(found, wanted, format):
    assert isinstance(found, scorch.SparseTensor) and str(found.format) == format
    assert found.dtype == wanted.dtype
    assert torch.equal(found.to_dense(), wanted)


@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
@pytest.mark.parametrize("name", MATRICES)
def test_matrices(name, format):
    args, kwargs = MATRICES[name]
    same(getattr(scorch, name)(*args, **kwargs, format=format), getattr(torch, name)(*args, **kwargs), format)


@pytest.mark.parametrize("format", ["coo", "s"])
@pytest.mark.parametrize("name", VECTORS)
def test_vectors(name, format):
    args, kwargs = VECTORS[name]
    wanted = getattr(torch, name)(*args, **kwargs)
    found = getattr(scorch, name)(*args, **kwargs, format=format)
    assert isinstance(found, scorch.SparseTensor) and found.format == scorch.formats.as_format(format, 1)
    assert found.dtype == wanted.dtype and torch.equal(found.to_dense(), wanted)


@pytest.mark.parametrize("name", RANDOM)
def test_random_tensors(name):
    args, kwargs = RANDOM[name]
    make = getattr(scorch, name)
    for density, count in ((0.25, 5), (None, 20)):
        torch.manual_seed(3)
        found = make(*args, **kwargs, density=density, format="csr")
        assert str(found.format) == "csr" and tuple(found.shape) == (4, 5) and found.nnz == count
        torch.manual_seed(3)
        assert torch.equal(make(*args, **kwargs, density=density, format="csr").to_dense(), found.to_dense())
    torch.manual_seed(3)
    wanted = getattr(torch, name)(*args, **kwargs)
    assert found.dtype == wanted.dtype and torch.equal(found.to_dense(), wanted)


def test_out_of_diag_is_torchs():
    out = torch.zeros(3, 3)
    assert scorch.diag(VECTOR, out=out) is out and torch.equal(out, torch.diag(VECTOR))


def test_permutations():
    wanted = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    found = scorch.randperm(9, format="coo", generator=torch.Generator().manual_seed(1))
    assert found.nnz == 8 and found.dtype == wanted.dtype and torch.equal(found.to_dense(), wanted)


@pytest.mark.parametrize("name", [*MATRICES, *VECTORS, "randperm"])
def test_without_format_they_are_torchs(name):
    args, kwargs = {**MATRICES, **VECTORS, "randperm": ((5,), {})}[name]
    torch.manual_seed(2)
    found = getattr(scorch, name)(*args, **kwargs)
    torch.manual_seed(2)
    wanted = getattr(torch, name)(*args, **kwargs)
    assert type(found) is torch.Tensor and torch.equal(found, wanted)


@pytest.mark.parametrize("name", [*MATRICES, *RANDOM])
def test_a_wrong_format_is_named(name):
    args, kwargs = {**MATRICES, **RANDOM}[name]
    with pytest.raises(FormatError, match="'crs'"):
        getattr(scorch, name)(*args, **kwargs, format="crs")


@pytest.mark.parametrize("name", ["arange", "linspace", "logspace", "randperm"])
def test_a_format_of_matrices_does_not_fit_a_vector(name):
    args, kwargs = {**VECTORS, "randperm": ((5,), {})}[name]
    with pytest.raises(ScorchError, match="bsr"):
        getattr(scorch, name)(*args, **kwargs, format="bsr(2,2)")


@pytest.mark.parametrize("offset", [-2, 0, 1])
@pytest.mark.parametrize("dims", [(-2, -1), (0, 2), (2, 0), (1, 0)])
def test_diagonals_of_batches(offset, dims):
    given = torch.arange(6.0).reshape(2, 3)
    wanted = torch.diag_embed(given, offset, *dims)
    found = scorch.diag_embed(given, offset, *dims, format="coo")
    assert found.nnz == 6 and torch.equal(found.to_dense(), wanted)
    sparse = scorch.from_torch(given, format="csr")
    assert torch.equal(scorch.diag_embed(sparse, offset, *dims, format="csf").to_dense(), wanted)


def test_large_diagonals_take_the_memory_of_their_entries():
    S = scorch.diag(torch.ones(200_000), 1, format="csr")
    assert S.nnz == 200_000 and tuple(S.shape) == (200_001, 200_001) and S[0, 1] == 1


def test_arrays_of_scipy_stay_sparse():
    assert scorch.asarray(scipy.sparse.eye_array(100_000, format="csr")).nnz == 100_000
    assert scorch.asarray(scorch.eye(3, format="csr"), format="coo", dtype=torch.float64).nnz == 3


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: scorch.linspace(0, 1, -1, format="coo"), ShapeError),
        (lambda: scorch.linspace(0, 1, 10**14, format="coo"), DensityError),
        (lambda: scorch.randperm(10**14, format="coo"), DensityError),
        (lambda: scorch.diag([1, 2], format="csr"), OperandError),
        (lambda: scorch.diag_embed(torch.tensor(1.0), format="csr"), ShapeError),
        (lambda: scorch.diag_embed(VECTOR, 0, 0, 0, format="csr"), ArgumentError),
        (lambda: scorch.diag_embed(VECTOR, 0, 0, 5, format="csr"), IndexRangeError),
        (lambda: scorch.normal(VECTOR, 1.0, density=0.5), OperandError),
        (lambda: scorch.from_numpy([1.0], format="coo"), OperandError),
        (lambda: scorch.bernoulli(0.5, format="coo"), OperandError),
        (lambda: scorch.linspace(0, 1, 3, format="coo", device="meta"), OperandError),
        (lambda: scorch.randperm(3, format="coo", nonsense=1), OperandError),
    ],
)
def test_wrong_calls_are_explained(call, error):
    with pytest.raises(error):
        call()


def test_unusual_arrays():
    array = np.arange(6.0).reshape(2, 3)[:, ::-1]
    assert torch.equal(scorch.from_numpy(array, format="csr").to_dense(), torch.tensor(array.copy()))
