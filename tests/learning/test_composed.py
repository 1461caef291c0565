"""Functions whose gradients follow the entries equal those of dense torch at the stored places."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import scorch
from scorch import SparseTensor

GENERATOR = torch.Generator().manual_seed(7)


def random(*shape: int) -> torch.Tensor:
    values = torch.randn(shape, generator=GENERATOR, dtype=torch.float64)
    return values * (torch.rand(shape, generator=GENERATOR) < 0.4)


OTHER, CLASSES = random(5, 6), torch.tensor([1, 0, 5, -100, 2])
WEIGHTS = torch.linspace(0.5, 2, 6, dtype=torch.float64)
CALLS = {
    "normalize": lambda x, o: F.normalize(x),
    "normalize by columns": lambda x, o: F.normalize(x, p=1.5, dim=0),
    "norm": lambda x, o: x.norm(),
    "norm of rows": lambda x, o: x.norm(dim=1),
    "norm of columns": lambda x, o: torch.norm(x, 3, 0, True),
    "largest": lambda x, o: x.norm(float("inf"), dim=1),
    "cosine_similarity": lambda x, o: F.cosine_similarity(x, o),
    "cosine_similarity of columns": lambda x, o: torch.cosine_similarity(o, x, 0),
    "nansum": lambda x, o: x.nansum(1),
    "nansum of all": lambda x, o: torch.nansum(x),
    "maximum": torch.maximum,
    "minimum": lambda x, o: torch.minimum(o, x),
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "lerp": lambda x, o: torch.lerp(x, o, 0.3),
    "addcmul": lambda x, o: torch.addcmul(x, x, o, value=2),
    "glu": lambda x, o: F.glu(x),
    "diff": lambda x, o: x.diff(),
    "second diff of columns": lambda x, o: torch.diff(x, 2, 0),
    "cross_entropy": lambda x, o: F.cross_entropy(x, CLASSES),
    "weighted cross_entropy": lambda x, o: F.cross_entropy(x, CLASSES, WEIGHTS, label_smoothing=0.1),
    "cross_entropy of each row": lambda x, o: F.cross_entropy(x, CLASSES, reduction="none"),
    "cross_entropy of probabilities": lambda x, o: F.cross_entropy(x, o.abs()),
}


def check(call, given: torch.Tensor, other, form: str) -> None:
    S, D = scorch.from_torch(given, format=form).requires_grad_(), given.clone().requires_grad_()
    other_sparse = scorch.from_torch(other, format="csr") if other is not None else None
    found, wanted = call(S, other_sparse), call(D, other)
    plain = found.to_dense() if isinstance(found, SparseTensor) else found
    torch.testing.assert_close(plain, wanted)
    weights = torch.linspace(1, 2, wanted.numel(), dtype=torch.float64).reshape(wanted.shape)
    (plain * weights).sum().backward()
    (wanted * weights).sum().backward()
    assert S.grad.storage.pattern is S.storage.pattern
    stored = SparseTensor(type(S.storage)(S.storage.pattern, torch.ones(S.nnz))).to_dense() != 0
    torch.testing.assert_close(S.grad.to_dense(), torch.where(stored, D.grad, 0))


@pytest.mark.parametrize("form", ["csr", "coo", "bsr(2,2)"])
@pytest.mark.parametrize("name", CALLS)
def test_gradient(name, form):
    given = random(5, 6)
    given[3] = 0
    check(CALLS[name], given, OTHER, form)


def test_hypot():
    given = random(5, 6)
    S, D = scorch.from_torch(given, format="csr").requires_grad_(), given.clone().requires_grad_()
    torch.hypot(S, scorch.from_torch(OTHER, format="csr")).sum().backward()
    torch.hypot(D, OTHER).sum().backward()
    torch.testing.assert_close(S.grad.to_dense(), torch.where(given != 0, D.grad, 0))


def test_nansum_leaves_numbers_that_are_none_out():
    S = scorch.from_torch(torch.tensor([[1.0, 0, torch.nan], [0, 2, 0]]), format="csr").requires_grad_()
    S.nansum(1).sum().backward()
    assert S.grad.values().tolist() == [1, 0, 1]


# equations -------------------------------------------------------------------------------------------

RIGHT = torch.randn(5, 2, generator=GENERATOR, dtype=torch.float64)
SOLVED = {
    "a vector": lambda x: torch.linalg.solve(x, RIGHT[:, 0]),
    "a matrix": lambda x: torch.linalg.solve(x, RIGHT),
    "from the right": lambda x: torch.linalg.solve(x, RIGHT.T, left=False),
    "spsolve": lambda x: (
        torch.sparse.spsolve(x, RIGHT[:, 0])
        if isinstance(x, SparseTensor)
        else torch.linalg.solve(x, RIGHT[:, 0])
    ),
}


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr(5,5)"])
@pytest.mark.parametrize("name", SOLVED)
def test_equations(name, form):
    given = random(5, 5) + 4 * torch.eye(5, dtype=torch.float64)
    check(lambda x, _: SOLVED[name](x), given, None, form)


def test_right_hand_sides_and_second_derivatives():
    given = random(5, 5) + 4 * torch.eye(5, dtype=torch.float64)
    S = scorch.from_torch(given, format="csr")
    pointers, columns = S.crow_indices(), S.col_indices()

    def solution(values: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(scorch.sparse_csr_tensor(pointers, columns, values, (5, 5)), right)

    inputs = (S.values().clone().requires_grad_(), RIGHT.clone().requires_grad_())
    assert torch.autograd.gradcheck(solution, inputs)
    assert torch.autograd.gradgradcheck(solution, inputs)


# extremes in index notation --------------------------------------------------------------------------

TIES = torch.tensor(
    [[1.0, 1, 0, 2], [0, -1, -1, 0], [-1, -2, -1, -1], [0, 0, 0, 0], [2, 2, 1, 0]], dtype=torch.float64
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr(2,2)"])
@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("text", ["y[i] = {}(j, S[i,j])", "y[j] = {}(i, S[i,j])", "y = {}(i, j, S[i,j])"])
def test_extremes_share_gradients_among_ties(text, op, form):
    """Zeros that are not stored are ties too if the extreme is zero."""
    kept = {"y[i]": 1, "y[j]": 0}.get(text[:4], (0, 1))

    def call(x, _):
        if isinstance(x, SparseTensor):
            return scorch.evaluate(text.format(op), S=x)
        return getattr(torch, f"a{op}")(x, kept)

    check(call, TIES, None, form)


@pytest.mark.parametrize("form", ["csr", "coo", "csc"])
@pytest.mark.parametrize("dim", [0, 1, (0, 1)])
def test_logsumexp_of_complex_numbers(form: str, dim: int | tuple[int, int]) -> None:
    dense = torch.tensor([[0, 1 + 1j, 0], [3 - 1j, 0, 2j], [0, 0, 0]], dtype=torch.complex128)
    S, D = scorch.from_torch(dense, format=form).requires_grad_(), dense.clone().requires_grad_()
    found, wanted = torch.logsumexp(S, dim), torch.logsumexp(D, dim)
    found = found.to_dense() if isinstance(found, scorch.SparseTensor) else found
    torch.testing.assert_close(found, wanted)
    found.abs().sum().backward()
    wanted.abs().sum().backward()
    assert S.grad is not None and D.grad is not None
    torch.testing.assert_close(S.grad.to_dense()[dense != 0], D.grad[dense != 0])


def test_a_reduction_inside_a_function_is_differentiated_once():
    A = scorch.rand(30, 20, density=0.3, format="csr", dtype=torch.float64)
    x, s, b = (torch.rand(*shape, dtype=torch.float64) for shape in ((20, 4), (20,), (4,)))
    operands = [operand.requires_grad_() for operand in (A, x, s, b)]
    text = "y[i,k] = tanh(A[i,j] * x[j,k] * s[j] + b[k])"

    def run() -> None:
        scorch.evaluate(text, A=A, x=x, s=s, b=b).sum().backward()

    run()
    found = [operand.grad.to_dense().clone() for operand in operands]
    shown = str(scorch.explain(run)())
    assert shown.count("sum(j, A[i,j] * x[j,k] * s[j])") == 1, shown  # not once more for each gradient
    dense = [operand.detach().to_dense().clone().requires_grad_() for operand in operands]
    torch.tanh(dense[0] @ (dense[1] * dense[2][:, None]) + dense[3]).sum().backward()
    dense[0].grad *= A.detach().to_dense() != 0
    for one, other in zip(found, dense, strict=True):
        torch.testing.assert_close(one, other.grad)


@pytest.mark.whole
def test_products_have_the_gradients_of_dense_ones() -> None:
    dense = torch.rand(6, 5, dtype=torch.float64) + 0.5
    dense[:3] *= torch.rand(3, 5) < 0.6  # the others have no zeros
    for dim in (0, 1):
        gradients = []
        for x in (dense.clone(), scorch.from_torch(dense, format="csr")):
            x.requires_grad_()
            (first,) = torch.autograd.grad((x.prod(dim) ** 2).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad((first * first).sum(), x)
            gradients.append([g.to_dense()[dense != 0] for g in (first, second)])
        torch.testing.assert_close(*gradients)
