"""Any function of sparse tensors inside of torch.func, over their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import scorch

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),  # torch's own, in forward mode
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
]
D = torch.linspace(-1, 1, 30, dtype=torch.float64).reshape(5, 6)
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "clone": lambda A: A.clone().square().sum(),
    "mse_loss": lambda A: F.mse_loss(A, D),
    "sum, keepdim": lambda A: (A * A.sum(1, keepdim=True)).sum(),
    "mean, var": lambda A: A.mean(1).var(),
    "other dtype": lambda A: (A * torch.ones(6)).square().sum(),
    "prod": lambda A: A.prod(1).sum(),
    "norm": lambda A: A.norm(),
    "cross_entropy": lambda A: F.cross_entropy(A, torch.arange(5)),
    "cat": lambda A: torch.cat([A, A]).norm(),
    "logsumexp": lambda A: A.logsumexp(1).sum(),
    "cumsum": lambda A: A.cumsum(0).square().sum(),
    "sort": lambda A: A.sort(1).values.square().sum(),
    "max": lambda A: A.max(1).values.sum(),
    "transposed product": lambda A: (A.T @ A).square().sum(),
    "det": lambda A: torch.linalg.det(A @ A.T + torch.eye(5, dtype=torch.float64)),
}
TRANSFORMS: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda f, v: torch.func.grad(f)(v),
    "jvp": lambda f, v: torch.func.jvp(f, (v,), (torch.ones_like(v),))[1],
    "hessian": lambda f, v: torch.func.hessian(f)(v),
    "vmap": lambda f, v: torch.vmap(f)(torch.stack([v, v * 2])),
    "jacrev of grad": lambda f, v: torch.func.jacrev(torch.func.grad(f))(v),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_transforms_over_values(name: str, transform: str) -> None:
    generator = torch.Generator().manual_seed(3)
    dense = torch.rand(5, 6, generator=generator, dtype=torch.float64)
    dense *= torch.rand(5, 6, generator=generator) < 0.5
    A = scorch.from_torch(dense, format="csr")
    rows, columns = dense.nonzero().unbind(1)

    def sparse(v: torch.Tensor) -> Any:
        return FUNCTIONS[name](scorch.sparse_csr_tensor(A.crow_indices(), A.col_indices(), v, A.shape))

    def truth(v: torch.Tensor) -> Any:
        return FUNCTIONS[name](torch.zeros(5, 6, dtype=torch.float64).index_put((rows, columns), v))

    found, wanted = (TRANSFORMS[transform](f, A.values()) for f in (sparse, truth))
    torch.testing.assert_close(found, wanted)


def test_sums_of_torch_sparse() -> None:
    A = scorch.rand(5, 6, density=0.4, format="csr", dtype=torch.float64)

    def total(v: torch.Tensor) -> torch.Tensor:
        made = scorch.sparse_csr_tensor(A.crow_indices(), A.col_indices(), v, A.shape)
        return torch.sparse.sum(made, 1).to_dense().square().sum()

    rows = A.to_dense().sum(1).repeat_interleave(A.crow_indices().diff().long())
    torch.testing.assert_close(torch.func.grad(total)(A.values()), 2 * rows)
