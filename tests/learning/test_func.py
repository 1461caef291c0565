"""``torch.func``: derivatives and batches over dense arguments and over the values of sparse tensors."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map

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
    "jacrev of a transposed": lambda A: jacrev(lambda x: x @ A.t())(X.t()),
    "jacfwd of a transposed": lambda A: jacfwd(lambda x: x @ A.t())(X.t()),
    "jacobian of a batch": lambda A: jacrev(lambda x: torch.matmul(x, A.t()))(BATCH.mT),
    "jacobian in chunks": lambda A: jacrev(lambda v: A @ v, chunk_size=2)(X[:, 0]),
    "hessian of a matrix": lambda A: hessian(lambda x: (x @ A.t()).pow(3).sum())(X.t()),
    "forward over forward": lambda A: jacfwd(jacfwd(lambda v: torch.tanh(A @ v)))(X[:, 0]),
    "reverse over forward": lambda A: jacrev(jacfwd(lambda v: torch.tanh(A @ v)))(X[:, 0]),
    "reverse over reverse": lambda A: jacrev(jacrev(lambda v: torch.tanh(A @ v)))(X[:, 0]),
    "forward over vjp": lambda A: jvp(lambda x: vjp(lambda y: torch.tanh(A @ y), x)[1](G)[0], (X,), (X,)),
    "vmap of a jacobian": lambda A: vmap(jacrev(lambda v: torch.sin(A @ v)))(X.t()),
    "vmap of a hessian": lambda A: vmap(hessian(lambda v: torch.sin(A @ v).sum()))(X.t()),
    "vmap of vmap": lambda A: vmap(vmap(lambda v: A @ v))(BATCH.mT),
    "evaluate": lambda A: grad(lambda x: scorch.evaluate("y[i,k] = exp(A[i,j] * x[j,k])", A=A, x=x).sum())(X),
}


def as_dense(tensor: torch.Tensor) -> torch.Tensor:
    """Without a call for dense tensors, whose ``to_dense`` fails inside of vmap in torch 2.15."""
    return tensor.to_dense() if isinstance(tensor, SparseTensor) else tensor


OVER_VALUES = {
    "grad": lambda make: grad(lambda v: (make(v) @ X).square().sum())(VALUES),
    "jvp": lambda make: jvp(lambda v: make(v) @ X, (VALUES,), (VALUES,)),
    "vmap": lambda make: vmap(lambda v: make(v) @ X)(SEVERAL),
    "vmap of grad": lambda make: vmap(grad(lambda v: (make(v) @ X).square().sum()))(SEVERAL),
    "hessian": lambda make: hessian(lambda v: (make(v) @ X).pow(3).sum())(VALUES),
    "jacrev": lambda make: jacrev(lambda v: X.t() @ make(v).t())(VALUES),
    "jacfwd": lambda make: jacfwd(lambda v: X.t() @ make(v).t())(VALUES),
    "hessian of both": lambda make: hessian(lambda v, x: (make(v) @ x).pow(3).sum(), argnums=(0, 1))(
        VALUES, X[:, 0]
    ),
    "vmap of both": lambda make: vmap(lambda v, x: make(v) @ x)(SEVERAL, BATCH[:3]),
    "jacfwd of a function": lambda make: jacfwd(lambda v: as_dense(torch.tanh(make(v))))(VALUES),
    "a sparse product": lambda make: grad(lambda v: (make(v) @ make(v).t()).square().sum())(VALUES),
    "a sparse result": lambda make: vmap(lambda v: as_dense(make(v) * 2))(SEVERAL),
    "relu": lambda make: grad(lambda v: torch.relu(make(v)).sum())(VALUES),
    "sum of two": lambda make: grad(lambda v: (make(v) + make(2 * v)).square().sum())(VALUES),
    "sums of rows": lambda make: vmap(lambda v: make(v).sum(1))(SEVERAL),
    "a slice": lambda make: grad(lambda v: (make(v)[1:4] @ X).square().sum())(VALUES),
    "concatenated": lambda make: grad(lambda v: (torch.cat([make(v), make(v)]) @ X).square().sum())(VALUES),
}


OVER_SPARSE = {
    "grad": lambda A: grad(lambda A: (A @ X).square().sum())(A),
    "grad of both": lambda A: grad(lambda A, x: (A @ x).square().sum(), argnums=(0, 1))(A, X),
    "grad of grad": lambda A: grad(lambda A: grad(lambda A: (A @ X).pow(3).sum())(A).sum())(A),
    "vjp": lambda A: vjp(lambda A: A @ X, A)[1](G),
    "jvp": lambda A: jvp(lambda A: A @ X, (A,), (2 * A,)),
    "jacrev": lambda A: jacrev(lambda A: A @ X[:, 0])(A),
    "jacfwd": lambda A: jacfwd(lambda A: A @ X[:, 0])(A),
    "hessian": lambda A: hessian(lambda A: (A @ X[:, 0]).pow(3).sum())(A),
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


@pytest.mark.parametrize("name", OVER_SPARSE)
def test_over_a_sparse_argument_as_over_a_dense_one(name):
    same(OVER_SPARSE[name](S), OVER_SPARSE[name](D))


def test_graphs_of_torch_fx_run_the_call_again():
    for function in (lambda x: S @ x, lambda x: (S * x[:, 0]).sum(1)):
        graph = make_fx(function)(X)
        torch.testing.assert_close(graph(BATCH[0]), function(BATCH[0]))
    with pytest.raises(UnsupportedError, match=r"not supported for sparse tensors; use torch\.func\.jvp"):
        linearize(lambda x: torch.sin(S @ x), X)


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

    layer = Layer()
    torch.testing.assert_close(functional_call(layer, {"weight": S * 2}, (X,)), 2 * D @ X)

    def loss(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return functional_call(layer, {"weight": weight}, (x,)).square().sum()

    same(grad(loss)(S, X), grad(loss)(D, X))
    same(
        grad(lambda values: loss(sparse(values), X))(VALUES),
        grad(lambda values: loss(dense(values), X))(VALUES),
    )
    same(vmap(grad(loss, argnums=1), (None, 0))(S, BATCH), vmap(grad(loss, argnums=1), (None, 0))(D, BATCH))


def test_patterns_that_depend_on_values_are_refused():
    with pytest.raises(UnsupportedError, match=r"compute the pattern outside"):
        grad(lambda d: scorch.from_torch(d, format="csr").sum())(D)


def test_attention():
    mask = scorch._src.nn.masks.window(6, 2)
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


def written(A: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    product = A * v
    product[1].mul_(v)
    return product


RETURNED = {
    "product": lambda A, v: A * v,
    "function": lambda A, v: torch.sin(A * v) * 2,
    "of values": lambda A, v: torch.relu(A * v).t(),
    "slice": lambda A, v: (A * v)[1:3],
    "sum": lambda A, v: A * v + A * v * v,
    "product of two": lambda A, v: (A * v) @ A.t(),
    "written in place": lambda A, v: (A * v).mul_(v),
    "view written in place": written,
    "dense, and nothing else": lambda A, v: A @ v,
    "several": lambda A, v: (A * v, A @ v, A),
}
V, W = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
SEVERAL_V = torch.stack([V, W])


def ones_of(result: object) -> object:
    return tree_map(lambda leaf: torch.ones(leaf.shape, dtype=torch.float64), result)


def total(result: object) -> torch.Tensor:
    return sum(leaf.square().sum() for leaf in tree_leaves(result))


def by_autograd(function, v: torch.Tensor) -> torch.Tensor:
    v = v.clone().requires_grad_()
    return torch.autograd.grad(total(function(v)), v)


TRANSFORMS = {
    "jvp": lambda f: jvp(f, (V,), (W,)),
    "vjp": lambda f: vjp(f, V)[0],
    "vjp of a dense gradient": lambda f: vjp(f, V)[1](ones_of(f(V))),
    "vjp of a sparse gradient": lambda f: vjp(f, V)[1](f(W)),
    "jacrev": lambda f: jacrev(f)(V),
    "jacfwd": lambda f: jacfwd(f)(V),
    "hessian": lambda f: jacfwd(jacrev(lambda v: tree_leaves(f(v))[0]))(V),
    "grad with more results": lambda f: grad(lambda v: (total(f(v)), f(v)), has_aux=True)(V),
    "vjp with more results": lambda f: vjp(lambda v: (v, f(v)), V, has_aux=True)[::2],
    "jvp with more results": lambda f: jvp(lambda v: (f(v), f(v)), (V,), (W,), has_aux=True),
    "vmap": lambda f: vmap(f)(SEVERAL_V),
    "vmap to the last dimension": lambda f: vmap(f, out_dims=-1)(SEVERAL_V),
    "vmap in chunks": lambda f: vmap(f, chunk_size=1)(SEVERAL_V),
    "vmap of vmap": lambda f: vmap(vmap(f))(SEVERAL_V[None]),
    "vmap of jvp": lambda f: vmap(lambda v: jvp(f, (v,), (W,)))(SEVERAL_V),
    "vmap of jacrev": lambda f: vmap(jacrev(f))(SEVERAL_V),
    "jvp of vmap": lambda f: jvp(vmap(f), (SEVERAL_V,), (SEVERAL_V,)),
    "jacrev of vmap": lambda f: jacrev(vmap(f))(SEVERAL_V),
    "grad of vmap": lambda f: grad(lambda v: total(vmap(f)(v)))(SEVERAL_V),
    "grad of jvp": lambda f: grad(lambda v: total(jvp(f, (v,), (W,))))(V),
    "grad of vjp": lambda f: grad(lambda v: total(vjp(f, v)[1](ones_of(f(V)))))(V),
    "grad of vmap of a constant": lambda f: grad(lambda v: total(vmap(lambda _: f(v))(SEVERAL_V)))(V),
    "autograd of vjp": lambda f: by_autograd(lambda v: vjp(f, v)[0], V),
    "autograd of jvp": lambda f: by_autograd(lambda v: jvp(f, (v,), (v,)), V),
    "autograd of vmap": lambda f: by_autograd(vmap(f), SEVERAL_V),
}


@pytest.mark.whole
@pytest.mark.parametrize("name", TRANSFORMS)
def test_functions_that_return_sparse_tensors(name):
    for label, function in RETURNED.items():
        if label in ("dense, and nothing else", "several") and name == "vmap to the last dimension":
            continue  # of one dimension
        if label == "several" and name in ("vjp of a sparse gradient", "autograd of vmap", "vmap of jacrev"):
            continue
        wanted = TRANSFORMS[name](lambda v, function=function: function(D, v))
        same(TRANSFORMS[name](lambda v, function=function: function(S, v)), wanted)


def test_results_of_transforms_are_sparse():
    result, change = jvp(lambda v: S * v, (V,), (V,))
    batch = vmap(lambda v: S * v)(SEVERAL_V)
    for tensor in (result, change, batch, vjp(lambda v: S * v, V)[0]):
        assert type(tensor) is SparseTensor
    assert result.nnz == change.nnz == S.nnz and batch.nnz == 2 * S.nnz
    assert (result.values() != 0).all() and batch.storage.values.data_ptr()


def test_jacobians_over_values_that_return_the_tensor():
    for transform in (jacrev, jacfwd):
        same(transform(lambda v: sparse(v) * 2)(VALUES), transform(lambda v: dense(v) * 2)(VALUES))
    same(vmap(sparse)(SEVERAL), vmap(dense)(SEVERAL))
    same(vmap(sparse, in_dims=1)(SEVERAL.t()), vmap(dense, in_dims=1)(SEVERAL.t()))


def test_operands_that_depend_on_each_other():
    # As one function of both, the gradient of an operand counted again what had come through the other.
    for function in (torch.atan2, torch.hypot, torch.copysign):

        def loss(A: torch.Tensor, v: torch.Tensor, function=function) -> torch.Tensor:
            return vjp(lambda u: as_dense(function(A * u, u)).sum(0).sin(), v)[0].square().sum()

        gradients = []
        for A in (S, D):
            v = V.clone().requires_grad_()
            gradients += torch.autograd.grad(loss(A, v), v)
        torch.testing.assert_close(*gradients)


def test_batches_with_different_patterns():
    v = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0], [-1.0, 2.0, -3.0, 4.0, 5.0]], dtype=torch.float64)
    same(vmap(lambda v: torch.atan2(S * v.abs(), v))(v), vmap(lambda v: torch.atan2(D * v.abs(), v))(v))


def test_empty_batches():
    for function in (lambda A, v: A * v, lambda A, v: torch.atan2(A * v, v), lambda A, v: (A * v).mul_(2)):
        results = [vmap(lambda v, A=A, f=function: f(A, v))(SEVERAL_V[:0]) for A in (S, D)]
        assert results[0].shape == results[1].shape == (0, 6, 5)


def test_a_sparse_argument_with_a_sparse_operand():
    T = scorch.rand(5, 6, density=0.4, format="csr", dtype=torch.float64)
    for function in (
        lambda A, B: A @ B,
        lambda A, B: B @ A,
        lambda A, B: A.t() * B,
        lambda A, B: torch.cat([B, A.t()]),
    ):
        stored = T.to_dense() != 0
        for transform in (
            lambda f, B: jvp(f, (B,), (B * 2,)),
            lambda f, B, stored=stored: as_dense(grad(lambda B: f(B).square().sum())(B)) * stored,
            lambda f, B, stored=stored: as_dense(vjp(f, B)[1](ones_of(f(B)))[0]) * stored,
        ):
            wanted = transform(lambda B, f=function: f(D, B), T.to_dense())
            same(transform(lambda B, f=function: f(S, B), T), wanted)


def test_second_derivatives_of_signs():  # torch's formulas multiply by zeros without memory
    for function in (torch.sgn, lambda A: torch.sin(A) * torch.sgn(A)):
        first, twice = (
            lambda A, f=function: as_dense(f(A) + A).square().sum(),
            lambda A, s: grad(lambda A: (grad(s)(A) * D).sum())(A),
        )
        same(as_dense(twice(S, first)) * (D != 0), twice(D, first) * (D != 0))


def test_functions_of_torch_autograd():
    for name in ("jvp", "vjp"):
        found, wanted = (
            getattr(torch.autograd.functional, name)(lambda v, A=A: torch.sin(A * v), V, u)
            for A, u in ((S, V if name == "jvp" else D), (D, V if name == "jvp" else D))
        )
        same(found, wanted)
    with pytest.raises(UnsupportedError, match="batched gradients"):
        torch.autograd.functional.jacobian(lambda v: S * v, V, vectorize=True)


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def frees_nodes_of_functions() -> bool:
    """Whether this torch frees the node of a Python function together with its result."""
    try:
        return not Same.apply(torch.ones(1, requires_grad=True)).grad_fn.next_functions
    except RuntimeError:
        return True


@pytest.mark.skipif(frees_nodes_of_functions(), reason="nodes of Python functions are freed in this torch")
def test_hooks_for_several_gradients():
    for others in ((), (V,)):
        leaf, seen = S.clone().detach().requires_grad_(), []
        inputs = [leaf, *(other.clone().requires_grad_() for other in others)]
        torch.autograd.graph.register_multi_grad_hook(inputs, seen.append)
        total = (leaf * inputs[-1] if others else leaf * 2).square().sum()
        total.backward()
        assert len(seen) == 1 and all(gradient is not None for gradient in seen[0])
        node = torch.autograd.graph.get_gradient_edge(leaf).node
        assert node is leaf.expand_as(leaf).grad_fn.next_functions[0][0] and node.variable is leaf
