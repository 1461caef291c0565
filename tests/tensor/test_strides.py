"""Sparse results tell how dense ones would lie in memory: ``stride``, ``view``, ``reshape``."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import scorch
from scorch._src.storage.strides import MAX_CALL_DEPTH

DENSE = torch.tensor([[2.0, 0, -1, 0], [0, 0, 3, 0], [1.5, 4, 0, 0]], dtype=torch.float64)

VIEWS = {
    "itself": lambda x: x,
    "T": lambda x: x.T,
    "rows": lambda x: x[1:],
    "columns": lambda x: x[:, 1:],
    "every second": lambda x: x[::2].T,
    "cube": lambda x: x.reshape(3, 2, 2).permute(2, 0, 1),
    "expanded": lambda x: x[:1].expand(3, 4),
    "transposed in place": lambda x: x.clone().t_(),
}

FUNCTIONS = {
    "relu": torch.relu,
    "clone": torch.clone,
    "contiguous": lambda x: x.contiguous(),
    "twice": lambda x: torch.tanh(torch.relu(x)),
    "scaled": lambda x: x * 2,
    "square": lambda x: x * x,
    "sum": lambda x: x + x.neg(),
    "by a dense one": lambda x: x * torch.ones(x.shape, dtype=torch.float64),
    "float": lambda x: x.float(),
    "back": lambda x: torch.relu(x).transpose(0, 1),
    "row by row": lambda x: x.clone(memory_format=torch.contiguous_format),
    "cat": lambda x: torch.cat([x, x]),
    "like": torch.zeros_like,
    "many": lambda x: [x := torch.tanh(x) for _ in range(2 * MAX_CALL_DEPTH + 3)][-1],
    "cumsum": lambda x: x.cumsum(0),
    "tril": lambda x: x.tril(),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("learned", [False, True], ids=["", "learned"])
@pytest.mark.parametrize("form", ["csr", "coo", "dcsr"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_lie_as_dense_ones(function, view, form, learned):
    made = []
    for x in (scorch.from_torch(DENSE, format=form), DENSE.clone()):
        if learned:
            x.requires_grad_()
            x = x * 1
        made.append(FUNCTIONS[function](VIEWS[view](x)))
    found, wanted = made
    if not isinstance(found, scorch.SparseTensor):
        pytest.skip("a dense result has strides of its own")
    assert found.stride() == wanted.stride()
    assert found.is_contiguous() == wanted.is_contiguous()
    for shape in ((-1,), (2, -1)):
        if wanted.numel() % 2:
            continue
        try:
            wanted.view(shape)
        except RuntimeError:
            with pytest.raises(RuntimeError, match="view size is not compatible"):
                found.view(shape)
        else:
            torch.testing.assert_close(found.view(shape).to_dense(), wanted.view(shape))
    for x in made:  # a view or a copy
        x.detach().reshape(-1).mul_(3)
    torch.testing.assert_close(found.to_dense(), wanted)


@pytest.mark.parametrize("form", ["csr", "coo"])
def test_write_through_views_of_transposed_results(form):
    """A view that lies in memory as its base does not: entries find their places by strides."""
    sparse, dense = (torch.relu(x.T) for x in (scorch.from_torch(DENSE, format=form), DENSE.clone()))
    for x in (sparse, dense):
        flat = x.T.view(-1)
        flat[5] = 7.0
        flat[::3].fill_(2.0)
        x[1:].T.mul_(5)
    torch.testing.assert_close(sparse.to_dense(), dense)


def test_strides_keep_no_entries():
    S = scorch.from_torch(DENSE, format="csr")
    result = torch.relu(S.T)
    values = weakref.ref(S.storage.values)
    del S
    gc.collect()
    assert values() is None
    assert result.stride() == (1, 4)


DENSE_RESULTS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "cos": lambda t, x: torch.cos(t),
    "plus a number": lambda t, x: t + 1,
    "plus dense": lambda t, x: t + x,
    "dense plus": lambda t, x: x + t,
    "minus dense as it lies": lambda t, x: t - x.t().contiguous().t(),
    "cos of relu": lambda t, x: torch.cos(torch.relu(t)),
    "times what is dense": lambda t, x: torch.sigmoid(t) * t,
}


@pytest.mark.parametrize("call", DENSE_RESULTS)
@pytest.mark.parametrize("format", ["csr", "coo"])
def test_dense_results_lie_as_those_of_dense_tensors(call: str, format: str) -> None:
    dense = torch.randn(3, 4) * (torch.rand(3, 4) < 0.5)
    x = torch.randn(4, 3)
    for _ in range(2):  # planned, then cached
        wanted = DENSE_RESULTS[call](dense.t(), x)
        got = DENSE_RESULTS[call](scorch.from_torch(dense, format=format).t(), x)
        assert got.stride() == wanted.stride()
        torch.testing.assert_close(got.to_dense(), wanted)
        if isinstance(got, torch.Tensor) and not isinstance(got, scorch.SparseTensor):
            for result in (got, wanted):  # a copy, or the same memory
                result.reshape(-1)[0] = 7
            torch.testing.assert_close(got, wanted)


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@pytest.mark.whole
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("view", VIEWS)
def test_views_are_arguments_of_compiled_functions(view: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    S = VIEWS[view](scorch.from_torch(DENSE, format="csr"))
    compiled = torch.compile(Doubled(), backend="aot_eager", fullgraph=True, dynamic=dynamic)
    torch.testing.assert_close(compiled(S).to_dense(), 2 * VIEWS[view](DENSE))
    assert S.stride() == VIEWS[view](DENSE).stride()


def test_a_compiled_layer_takes_the_transpose_of_a_graph() -> None:
    edges, x = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]]), torch.rand(4, 5)
    layer = scorch.nn.GCNConv(5, 3)
    for form in ("csr", "coo"):
        torch._dynamo.reset()
        compiled = torch.compile(layer, backend="aot_eager")
        adj = scorch.from_edge_index(edges, size=4, format=form).T
        torch.testing.assert_close(compiled(x, edges), layer(x, edges))
        torch.testing.assert_close(compiled(x, adj), layer(x, edges))


def test_a_transpose_is_exported() -> None:
    S = scorch.from_torch(DENSE, format="csr").T
    program = torch.export.export(Doubled(), (S,))
    torch.testing.assert_close(program.module()(S).to_dense(), 2 * DENSE.T)
