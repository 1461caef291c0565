"""Gradients of a matrix that would be 160 GB dense: their cost follows the entries, whatever the function."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import scorch
from scorch import SparseTensor

pytestmark = pytest.mark.usefixtures("little_memory")

N = 200_000
PLACES = torch.randint(0, N, (2, 2_000), generator=torch.Generator().manual_seed(0))
ROW, COLUMN = int(PLACES[0, 0]), int(PLACES[1, 0])
ROWS = torch.tensor([1, 5, ROW, 100])
X = torch.randn(N, 2, generator=torch.Generator().manual_seed(1))
V = torch.rand(N, generator=torch.Generator().manual_seed(2)) + 1


@pytest.fixture(scope="module")
def huge() -> SparseTensor:
    values = torch.randn(2_000, generator=torch.Generator().manual_seed(3))
    return scorch.sparse_coo_tensor(PLACES, values, (N, N), format="csr")


CALLS = {
    "sum": lambda S: S.sum(),
    "sum of columns": lambda S: S.sum(0),
    "mean": lambda S: S.mean(),
    "mean of rows": lambda S: S.mean(1),
    "var": lambda S: S.var(),
    "std of rows": lambda S: S.std(1),
    "norm": lambda S: S.norm(),
    "norm of rows": lambda S: torch.linalg.vector_norm(S, dim=1),
    "amax": lambda S: S.amax(1),
    "amin": lambda S: S.amin(0),
    "max": lambda S: S.max(),
    "max of rows": lambda S: S.max(1).values,
    "median": lambda S: S.median(1).values,
    "topk": lambda S: S.topk(2, 1).values,
    "logsumexp": lambda S: S.logsumexp(1),
    "prod": lambda S: S.prod(1),
    "relu": lambda S: S.relu(),
    "gelu": F.gelu,
    "leaky_relu": F.leaky_relu,
    "pow": lambda S: S**3,
    "clamp": lambda S: S.clamp(-1, 1),
    "a row": lambda S: S[ROW],
    "rows": lambda S: S[ROW : ROW + 100],
    "every second row": lambda S: S[::2],
    "some rows": lambda S: S[ROWS],
    "a column": lambda S: S[:, COLUMN],
    "an element": lambda S: S[ROW, COLUMN],
    "index_select": lambda S: S.index_select(1, ROWS),
    "narrow": lambda S: S.narrow(0, 5, 1000),
    "embedding": lambda S: F.embedding(ROWS, S),
    "gather": lambda S: S.gather(1, torch.zeros(N, 1, dtype=torch.int64)),
    "transposed": lambda S: S.t(),
    "cat": lambda S: torch.cat([S, S], 1),
    "stack": lambda S: torch.stack([S, S]),
    "chunk": lambda S: S.chunk(4)[1],
    "reshape": lambda S: S.reshape(N * N),
    "flip": lambda S: S.flip(0),
    "tril": lambda S: S.tril(),
    "diagonal": lambda S: S.diagonal(),
    "trace": lambda S: S.trace(),
    "times itself": lambda S: S * S,
    "plus its transpose": lambda S: S + S.t(),
    "times a vector": lambda S: S * V,
    "over a vector": lambda S: S / V,
    "times a matrix": lambda S: S @ X,
    "transposed times": lambda S: S.t() @ X,
    "matrix times": lambda S: X.t() @ S,
    "squared": lambda S: S @ S,
    "addmm": lambda S: torch.addmm(X, S, X),
    "linear": lambda S: F.linear(S, X.t()),
    "weight of linear": lambda S: F.linear(X.t(), S),
    "einsum": lambda S: torch.einsum("ij,ik,jk->ij", S, X, X),
    "sparse.mm": lambda S: torch.sparse.mm(S, X),
    "sparse.softmax": lambda S: torch.sparse.softmax(S, 1),
    "sparse.sum": lambda S: torch.sparse.sum(S, 1),
    "sampled_addmm": lambda S: torch.sparse.sampled_addmm(S, X, X.t()),
    "in columns": lambda S: S.to_format("csc"),
    "in blocks": lambda S: S.to_format("bsr(2,2)"),
    "values": lambda S: S.values(),
    "double": lambda S: S.double(),
    "dropout": lambda S: F.dropout(S, 0.5),
    "mse_loss": lambda S: F.mse_loss(S, 2 * S.detach()),
    "huber_loss": lambda S: F.huber_loss(S, 2 * S.detach()),
    "norm of columns": lambda S: S.norm(dim=0),
    "normalize": lambda S: F.normalize(S, dim=1),
    "cosine_similarity": lambda S: F.cosine_similarity(S, 2 * S.detach(), 1),
    "cross_entropy": lambda S: F.cross_entropy(S, torch.zeros(N, dtype=torch.int64)),
    "nansum": lambda S: S.nansum(1),
    "maximum": lambda S: torch.maximum(S, S.detach().t()),
    "fmin": lambda S: torch.fmin(S, S.detach().t()),
    "hypot": lambda S: torch.hypot(S, 2 * S.detach()),
    "glu": lambda S: F.glu(S),
    "diff": lambda S: S.diff(),
    "solve": lambda S: torch.linalg.solve(S * 0.01 + scorch.eye(N, format="csr"), V),
    "spsolve": lambda S: torch.sparse.spsolve(S * 0.01 + scorch.eye(N, format="csr"), V),
    "masked amax": lambda S: S.amax(1, masked=True).clamp(-9, 9),
    "masked cumsum": lambda S: S.cumsum(1, masked=True),
    "to_torch": lambda S: S.to_torch().values(),
    "largest by evaluate": lambda S: scorch.evaluate("y[i] = max(j, S[i,j])", S=S),
    "tensordot": lambda S: torch.tensordot(S, X, 1),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CALLS)
def test_gradient(name, huge):
    S = huge.clone().requires_grad_()
    found = CALLS[name](S)
    (found * 1.5).sum().backward()
    assert isinstance(S.grad, SparseTensor) and S.grad.storage.pattern is S.storage.pattern
    assert S.grad.values().isfinite().all()


def test_uses_are_added_up_on_the_pattern(huge):
    """Where torch's formula for one of them gives a dense gradient, it is sampled before it is added."""
    S = huge.clone().requires_grad_()
    loss = (S @ X).sum() + S.sum() + torch.relu(S).sum() + S[ROW].sum()
    loss.backward()
    once = huge.clone().requires_grad_()
    (once @ X).sum().backward()
    rest = 1 + (huge.values() > 0).float() + (huge.coo()[0] == ROW).float()
    torch.testing.assert_close(S.grad.values(), once.grad.values() + rest)
