"""``torch.func``: derivatives and batches over dense arguments and over the values of sparse tensors."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils._pytree import tree_leaves

import scorch
from scorch import SparseTensor
from scorch.errors import UnsupportedError

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),  # torch's own, in forward mode
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),  # to_dense of dense tensors
]

torch.manual_seed(0)
S = scorch.rand(
    6, 5, density=0.4, format="csr", dtype=torch.float64, generator=torch.Generator().manual_seed(1)
)
D = S.to_dense()
X = torch.randn(5, 3, dtype=torch.float64)
BATCH = torch.randn(4, 5, 3, dtype=torch.float64)
G = torch.randn(6, 3, dtype=torch.float64)
POINTERS, COLUMNS, VALUES = S.crow_indices(), S.col_indices(), S.values().clone()
ROWS = S.to_format("coo").indices()
SEVERAL = torch.randn(3, VALUES.numel(), dtype=torch.float64)


def sparse(values: torch.Tensor) -> SparseTensor:
    return scorch.sparse_csr_tensor(POINTERS, COLUMNS, values, (6, 5))


def dense(values: torch.Tensor) -> torch.Tensor:
    return torch.zeros(6, 5, dtype=torch.float64).index_put((ROWS[0], ROWS[1]), values)


OVER_DENSE = {
    "grad": lambda A: grad(lambda x: (A @ x).square().sum())(X),
    "jvp": lambda A: jvp(lambda x: A @ x, (X,), (X,)),
    "vjp": lambda A: vjp(lambda x: A @ x, X)[1](G),
    "vmap": lambda A: vmap(lambda x: A @ x)(BATCH),
    "vmap of another dimension": lambda A: vmap(lambda x: A @ x, in_dims=2, out_dims=1)(
        BATCH.permute(1, 2, 0)
    ),
    "vmap of grad": lambda A: vmap(grad(lambda x: (A @ x).square().sum()))(BATCH),
    "hessian": lambda A: hessian(lambda v: (A @ v).pow(3).sum())(X[:, 0]),
    "jacrev": lambda A: jacrev(lambda v: A @ v)(X[:, 0]),
    "jacfwd": lambda A: jacfwd(lambda v: A @ v)(X[:, 0]),
    "product with a dense tensor": lambda A: grad(lambda d: (A * d).square().sum())(D + 1),
    "function, then product": lambda A: grad(lambda x: (A.tanh() @ x).sum())(X),
    "addmm": lambda A: grad(lambda x: torch.addmm(G, A, x).square().sum())(X),
    "linear": lambda A: grad(lambda w: torch.nn.functional.linear(A, w).square().sum())(X.t().contiguous()),
    "einsum": lambda A: vmap(lambda x: scorch.einsum("ij,jk->ik", A, x))(BATCH),
    "evaluate": lambda A: grad(lambda x: scorch.evaluate("y[i,k] = exp(A[i,j] * x[j,k])", A=A, x=x).sum())(X),
}

OVER_VALUES = {
    "grad": lambda make: grad(lambda v: (make(v) @ X).square().sum())(VALUES),
    "jvp": lambda make: jvp(lambda v: make(v) @ X, (VALUES,), (VALUES,)),
    "vmap": lambda make: vmap(lambda v: make(v) @ X)(SEVERAL),
    "vmap of grad": lambda make: vmap(grad(lambda v: (make(v) @ X).square().sum()))(SEVERAL),
    "hessian": lambda make: hessian(lambda v: (make(v) @ X).pow(3).sum())(VALUES),
    "a sparse product": lambda make: grad(lambda v: (make(v) @ make(v).t()).square().sum())(VALUES),
    "a sparse result": lambda make: vmap(lambda v: (make(v) * 2).to_dense())(SEVERAL),
    "relu": lambda make: grad(lambda v: torch.relu(make(v)).sum())(VALUES),
    "sum of two": lambda make: grad(lambda v: (make(v) + make(2 * v)).square().sum())(VALUES),
    "sums of rows": lambda make: vmap(lambda v: make(v).sum(1))(SEVERAL),
    "a slice": lambda make: grad(lambda v: (make(v)[1:4] @ X).square().sum())(VALUES),
    "concatenated": lambda make: grad(lambda v: (torch.cat([make(v), make(v)]) @ X).square().sum())(VALUES),
}


def same(found: object, wanted: object) -> None:
    for one, other in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
        torch.testing.assert_close(one.to_dense() if isinstance(one, SparseTensor) else one, other)


@pytest.mark.parametrize("name", OVER_DENSE)
def test_over_dense_arguments(name):
    same(OVER_DENSE[name](S), OVER_DENSE[name](D))


@pytest.mark.parametrize("name", OVER_VALUES)
def test_over_values(name):
    same(OVER_VALUES[name](sparse), OVER_VALUES[name](dense))


def test_unsorted_and_repeated_entries():
    places = torch.tensor([[3, 0, 3, 1], [2, 4, 2, 0]])

    def made(values: torch.Tensor) -> torch.Tensor:
        return scorch.sparse_coo_tensor(places, values, (6, 5), format="csr") @ X

    def truth(values: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(6, 5, dtype=torch.float64)
        return zeros.index_put((places[0], places[1]), values, accumulate=True) @ X

    values = torch.randn(4, dtype=torch.float64)
    same(jacrev(made)(values), jacrev(truth)(values))
    assert torch.autograd.gradcheck(made, values.clone().requires_grad_())


def test_parameters_of_a_module():
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(S.clone())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight @ x

    torch.testing.assert_close(functional_call(Layer(), {"weight": S * 2}, (X,)), 2 * D @ X)


def test_patterns_that_depend_on_values_are_refused():
    with pytest.raises(UnsupportedError, match=r"make the sparse tensor outside"):
        grad(lambda d: scorch.from_torch(d, format="csr").sum())(D)


def test_attention():
    mask = scorch.nn.masks.window(6, 2)
    q, k, v = torch.randn(3, 6, 4, dtype=torch.float64)
    attention = torch.nn.functional.scaled_dot_product_attention
    allowed = mask.to_dense()

    def loss(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v, mask).square().sum()

    same(grad(loss)(q, mask), grad(loss)(q, allowed))
    same(
        vmap(lambda q: attention(q, k, v, mask))(torch.stack([q, k])),
        attention(torch.stack([q, k]), k, v, allowed),
    )
    torch.testing.assert_close(attention(q, k, v, mask), attention(q, k, v, allowed))
