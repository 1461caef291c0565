"""``scorch.compile``: joined calls give what they give one by one, with and without gradients."""

from __future__ import annotations

import gc
import json
import re
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import grid_emulator  # noqa: F401
import scorch
from on_device import is_on_device
from properties.drawing import FEWER
from scorch._src.compile import recorder
from scorch._src.explain.fusion_report import FusionExplanation
from scorch._src.tensor.create.construct import from_torch
from scorch.errors import InPlaceError, OperandError, UnsupportedError
from scorch.settings import current

Function = Callable[..., Any]


def sparse(rows: int, columns: int, format: str = "csr", density: float = 0.2, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(rows, columns, generator=generator) < density
    values = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return from_torch(torch.where(kept, values, 0.0), format=format)


def dense(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain(tensor: Any) -> torch.Tensor:
    return tensor.to_dense() if isinstance(tensor, scorch.SparseTensor) else tensor


def same(found: Any, truth: Any) -> None:
    assert isinstance(found, scorch.SparseTensor) == isinstance(truth, scorch.SparseTensor)
    torch.testing.assert_close(plain(found), plain(truth), equal_nan=True)


def gradients(function: Function, args: tuple[Any, ...], twice: bool = False) -> list[torch.Tensor]:
    given = [
        a.detach().clone().requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
        for a in args
    ]
    leaves = [a for a in given if isinstance(a, torch.Tensor) and a.requires_grad]
    total = plain(function(*given)).sin().sum()
    found = torch.autograd.grad(total, leaves, create_graph=twice, allow_unused=True)
    if twice:
        again = sum(plain(g).square().sum() for g in found if g is not None)
        found = torch.autograd.grad(again, leaves, allow_unused=True)
    return [plain(g) for g in found if g is not None]


def check(function: Function, *args: Any, one_kernel: bool = True) -> FusionExplanation:
    compiled = scorch.compile(function)
    truth = function(*args)
    same(compiled(*args), truth)
    same(compiled(*args), truth)  # from what the first call has planned
    for twice in (False, True):
        for found, expected in zip(
            gradients(compiled, args, twice), gradients(function, args, twice), strict=True
        ):
            torch.testing.assert_close(found, expected, equal_nan=True)
    explanation = scorch.explain(compiled, *args)
    assert isinstance(explanation, FusionExplanation)
    if one_kernel and not is_on_device():  # where calls run one by one
        assert len(explanation.groups) == 1, str(explanation)
        is_interpreted = current().backend == "interpreter"  # which has no source
        assert explanation.groups[0].source or is_interpreted, str(explanation)
    return explanation


# what is to be joined --------------------------------------------------------------------------------


def attend(M: Any, Q: Any, K: Any, V: Any) -> Any:
    return torch.sparse.softmax(torch.sparse.sampled_addmm(M, Q, K.T, beta=0.0) * 0.5, 1) @ V


def attend_by_einsum(M: Any, Q: Any, K: Any, V: Any) -> Any:
    return torch.sparse.softmax(scorch.einsum("ij,ik,jk->ij", M, Q, K) / 2, 1) @ V


def gat(M: Any, a: Any, b: Any, H: Any) -> Any:
    return F.elu(torch.sparse.softmax(F.leaky_relu(M * a[:, None] + M * b[None, :], 0.2), 1) @ H)


def gcn(A: Any, d: Any, X: Any, b: Any) -> Any:
    return torch.relu((A * d[:, None] * d[None, :]) @ X + b)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("format", ["csr", "coo"])
@pytest.mark.parametrize("function", [attend, attend_by_einsum])
def test_attention_is_one_kernel(function: Function, format: str) -> None:
    check(function, sparse(12, 15, format), dense(12, 4), dense(15, 4, seed=1), dense(15, 6, seed=2))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("format", ["csr", "coo"])
def test_graph_attention_is_one_kernel(format: str) -> None:
    check(gat, sparse(12, 12, format), dense(12), dense(12, seed=1), dense(12, 5, seed=2))


@pytest.mark.parametrize("format", ["csr", "coo"])
def test_graph_convolution_is_one_kernel(format: str) -> None:
    explanation = check(gcn, sparse(12, 12, format, 0.2), dense(12).abs(), dense(12, 5), dense(5))
    assert explanation.groups[0].calls == ("mul", "mul", "matmul", "add", "relu")
    assert is_on_device() or "relu(" in explanation.groups[0].statements


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dcsr", "bsr(2,2)", "sd"])
def test_elementwise_chains_are_one_kernel_in_every_format(format: str) -> None:
    A = sparse(8, 10, format)
    check(lambda A: torch.tanh(torch.relu(-(A * 2.5)) / 3).square(), A)


@pytest.mark.cpu("calls are joined there")
def test_long_chains_are_several_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_NESTED_CALLS", 4)

    def chain(A: Any, x: torch.Tensor) -> Any:
        found = A
        for scale in range(1, 6):
            found = torch.tanh(found * scale)
        return found * x

    explanation = check(chain, sparse(8, 8), dense(8), one_kernel=False)
    assert [len(group.calls) for group in explanation.groups] == [4, 4, 3]
    assert all(group.source for group in explanation.groups) or current().backend == "interpreter"


def test_chains_of_tensors_of_higher_order() -> None:
    A = from_torch(torch.where(torch.rand(4, 5, 6) < 0.3, torch.rand(4, 5, 6), 0.0).double(), format="csf")
    check(lambda A: torch.expm1(A * 2).abs() * A, A)


def test_log_softmax_and_vectors() -> None:
    A = sparse(9, 7, density=0.3)
    check(lambda A, x: torch.sparse.log_softmax(A * 2, 1) @ x, A, dense(7))


def test_addmm_with_bias_and_activation() -> None:
    check(
        lambda A, X, b: torch.sigmoid(torch.addmm(b, A, X)), sparse(9, 7, density=0.2), dense(7, 5), dense(5)
    )


def test_sampled_addmm_adds_what_is_stored() -> None:
    def function(A: Any, Q: Any, K: Any) -> Any:
        return torch.relu(torch.sparse.sampled_addmm(A, Q, K, beta=0.5, alpha=2.0))

    check(function, sparse(9, 7), dense(9, 3), dense(3, 7))


def test_infinities_and_nan_come_through() -> None:
    A = sparse(12, 12)
    A.values()[0], A.values()[3] = float("nan"), float("inf")
    check(lambda A, X: torch.relu((A * 2) @ X), A, dense(12, 3))


@pytest.mark.cpu("calls are joined there")
def test_gradients_of_chains_are_one_kernel_too() -> None:
    compiled = scorch.compile(lambda A: torch.relu(A * 2) * 3)
    [group] = scorch.explain(compiled, sparse(6, 6).requires_grad_()).groups
    assert group.gradients.startswith("one kernel:")
    assert "gradients:" in str(group) and "where(" in str(group)
    assert not scorch.explain(compiled, sparse(6, 6)).groups[0].gradients


@pytest.mark.parametrize("learns", [False, True])
def test_nothing_outlives_a_call(learns: bool) -> None:
    """Without the help of the garbage collector, which does not see through torch's graphs."""
    compiled = scorch.compile(lambda A, X: torch.relu(torch.sparse.softmax(A * 2, 1) @ X))
    A, X = sparse(12, 12), dense(12, 3).requires_grad_(learns)
    enabled = gc.isenabled()
    gc.disable()
    try:
        for backward in (False, True):
            made = X * 1
            found = compiled(A, made)
            if backward and learns:
                found.sum().backward()
            refs = [weakref.ref(made), weakref.ref(found)]
            del made, found
            assert [ref() for ref in refs] == [None, None]
    finally:
        if enabled:
            gc.enable()


def test_several_results_share_a_kernel() -> None:
    def function(M: Any, Q: Any, V: Any) -> dict[str, Any]:
        shares = torch.sparse.softmax(scorch.einsum("ij,ik,jk->ij", M, Q, Q), 1)
        return {"out": shares @ V, "shares": [shares]}

    args = sparse(9, 9), dense(9, 4), dense(9, 3)
    compiled = scorch.compile(function)
    found, truth = compiled(*args), function(*args)
    same(found["out"], truth["out"])
    same(found["shares"][0], truth["shares"][0])
    assert len(scorch.explain(compiled, *args).groups) == 1


def test_masks_times_products_never_form_the_whole_product() -> None:
    def function(M: Any, Q: Any, K: Any, V: Any) -> Any:
        return torch.sparse.softmax(M * (Q @ K.T / 2.0), 1) @ V

    args = sparse(12, 15), dense(12, 4), dense(15, 4, seed=1), dense(15, 6, seed=2)
    explanation = check(function, *args)
    assert explanation.groups[0].calls == ("mul", "sparse_softmax", "matmul")
    check(lambda M, Q, K: 2 * (Q @ K) * M * 3, *args[:2], dense(4, 15))


@pytest.mark.cpu("calls are joined there")
def test_masks_times_huge_products() -> None:
    n = 200_000  # 160 GB as a dense product
    wide = scorch.sparse_coo_tensor(torch.tensor([[5, 7], [1, 199_999]]), torch.ones(2), (n, n), format="csr")
    x = torch.ones(n, 2)
    found = scorch.compile(lambda M, x: torch.relu(M * (x @ x.T)))(wide, x)
    assert found.values().tolist() == [2.0, 2.0]


def test_products_of_dense_matrices_that_are_needed_whole() -> None:
    def function(M: Any, Q: Any, K: Any) -> Any:
        product = Q @ K
        return (M * product).to_dense() + product.sum() + (product * 2.0)

    check(function, sparse(12, 15), dense(12, 4), dense(4, 15, seed=1), one_kernel=False)


def test_index_notation_is_joined() -> None:
    def function(A: Any, X: Any, r: Any) -> Any:
        return torch.relu(scorch.evaluate("y[i,k] = -2 * A[i,j] * X[j,k] * r[i]", A=A * 3, X=X, r=r))

    explanation = check(function, sparse(12, 12), dense(12, 5), dense(12))
    assert explanation.groups[0].calls == ("mul", "evaluate", "relu")
    others = ["y[i] = max(j, A[i,j])", "y[j] = A[i,j] * r[i]", "y[i,j] = A[i,j] + r[i]"]
    for text in others:
        check(
            lambda A, r, text=text: scorch.evaluate(text, A=A * 3, **({"r": r} if "r[" in text else {})),
            sparse(12, 12),
            dense(12),
            one_kernel=False,
        )


def test_tensors_in_index_notation_may_have_any_name() -> None:
    def function(A: Any, x: Any) -> Any:
        text = "y[i] = recorder[i,j] * expression[j]"
        return torch.relu(scorch.evaluate(text, recorder=A * 3, expression=x))

    check(function, sparse(12, 12), dense(12))


def test_arguments_without_a_rule_run_as_outside() -> None:
    check(lambda A, d: torch.sum(A * d, axis=1), sparse(12, 10), dense(10), one_kernel=False)
    check(lambda A, d: torch.add(A * d, A, alpha=3), sparse(12, 10), dense(10), one_kernel=False)


def test_row_sums_are_joined() -> None:
    check(lambda A, d: torch.relu((A * d).sum(1) + 1), sparse(12, 10), dense(10))
    check(lambda A, d: (A * d).sum(0) + (A * d).sum(), sparse(12, 10), dense(10), one_kernel=False)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (1, 1), (3, 1), (1, 4)])
@pytest.mark.parametrize("format", ["csr", "coo"])
def test_empty_and_tiny_matrices(shape: tuple[int, int], format: str) -> None:
    rows, columns = shape
    M = from_torch(torch.ones(rows, columns, dtype=torch.float64), format=format)
    check(attend, M, dense(rows, 2), dense(columns, 2), dense(columns, 3), one_kernel=False)
    check(
        lambda A, d, e, X, b: torch.relu((A * d[:, None] * e) @ X + b),
        M,
        dense(rows),
        dense(columns),
        dense(columns, 3),
        dense(3),
        one_kernel=False,
    )
    check(lambda A: torch.tanh(A * 2).square(), M, one_kernel=False)


def test_calls_that_were_made_before_are_looked_up() -> None:
    """Other shapes, dtypes and branches are other calls; other numbers are not."""

    def function(A: Any, X: Any, twice: bool) -> Any:
        B = A * 2 if twice else torch.relu(A)
        return torch.relu(B @ X)

    compiled = scorch.compile(function)
    for seed in range(3):
        for rows in (12, 15):
            for twice in (True, False):
                for dtype in (torch.float32, torch.float64):
                    A = sparse(rows, 8, density=0.1, seed=seed).to(dtype)
                    X = dense(8, 3, seed=seed).to(dtype)
                    same(compiled(A, X, twice), function(A, X, twice))
                    same(compiled(A, X.T.contiguous().T, twice), function(A, X, twice))
                    [root] = compiled.trees.values()
                    size = root.size[0]
                    same(compiled(A * 2, X * 3, twice), function(A * 2, X * 3, twice))
                    assert root.size[0] == size


def test_gradients_of_several_results_and_uses() -> None:
    def function(M: Any, Q: Any, V: Any) -> Any:
        shares = torch.sparse.log_softmax(M * 2 * Q[:, :1], 1)
        out = (shares * M) @ V
        return out * torch.sigmoid(out) + (shares @ V).abs()

    check(function, sparse(9, 9), dense(9, 3), dense(9, 3))


@pytest.mark.cpu("backends that read the memory of the host")
@pytest.mark.parametrize("backend", ["cpu", "emulated"])
def test_gradients_of_a_tensor_that_calls_name_otherwise(backend: str) -> None:
    """Each call has indices of its own, and their gradients are added up."""

    def function(M: Any, Q: Any, K: Any) -> Any:
        once = torch.sparse.sampled_addmm(M, Q, K, alpha=0.5)
        return torch.sparse.sampled_addmm(once, Q, K, alpha=0.5) * 1

    with scorch.settings(backend=backend):
        check(function, sparse(9, 7, density=0.2), dense(9, 3), dense(3, 7))


# anything else runs as outside -----------------------------------------------------------------------


def test_dense_layers_between_sparse_ones() -> None:
    def function(A: Any, X: Any, W: Any, b: Any) -> Any:
        hidden = torch.relu(A @ X + b) @ W
        return torch.relu(A @ hidden)

    args = sparse(9, 9, density=0.2), dense(9, 4), dense(4, 5), dense(4)
    check(function, *args, one_kernel=False)
    assert len(scorch.explain(scorch.compile(function), *args).groups) == 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize("format", ["csc", "dcsr", "bsr(2,2)"])
def test_products_in_formats_without_rows(format: str) -> None:
    check(gcn, sparse(8, 8, format), dense(8).abs(), dense(8, 5), dense(5), one_kernel=False)


def test_other_functions_and_python_decide_on_values() -> None:
    def function(A: Any, X: Any) -> Any:
        B = A * 2
        if B.sum() > -1000:
            B = torch.sin(B) + B
        return torch.cat([B @ X, X.sum() + B.to_dense() @ X])

    check(function, sparse(6, 6), dense(6, 3), one_kernel=False)


def test_tensors_on_several_patterns() -> None:
    def function(A: Any, B: Any, X: Any) -> Any:
        return torch.relu((A * 2) @ X + (B * 3) @ X)

    check(
        function, sparse(6, 6, density=0.2), sparse(6, 6, density=0.2, seed=9), dense(6, 3), one_kernel=False
    )


def test_other_dtypes() -> None:
    A = sparse(6, 6).to(torch.bfloat16)
    compiled = scorch.compile(lambda A: torch.relu(A * 2) * 3)
    same(compiled(A), torch.relu(A * 2) * 3)


def test_what_changes_in_place_is_read_before() -> None:
    def function(A: Any, d: Any) -> Any:
        B = torch.relu(A * d[:, None])
        d.mul_(0)
        return B * 2

    d = dense(6).abs()
    truth = function(sparse(6, 6), d.clone())
    same(scorch.compile(function)(sparse(6, 6), d), truth)
    assert not d.any()


def test_changes_that_are_not_seen_are_refused() -> None:
    d = dense(6)

    def hidden() -> None:
        with torch._C.DisableTorchFunction():
            d.mul_(2)

    def function(A: Any) -> Any:
        B = torch.relu(A * d[None, :])
        hidden()
        return B * 2

    with pytest.raises(InPlaceError, match=r"changed in place inside scorch\.compile"):
        scorch.compile(function)(sparse(6, 6))


def test_results_that_leave_another_way_are_computed_later() -> None:
    kept: list[Any] = []

    def function(A: Any) -> None:
        kept.append(torch.relu(A * 2) * 3)

    A = sparse(6, 6)
    scorch.compile(function)(A)
    [found] = kept
    assert isinstance(found, scorch.SparseTensor)
    assert found.shape == (6, 6) and found.dtype == torch.float64
    assert found.nnz == A.nnz
    same(found + A, torch.relu(A * 2) * 3 + A)
    same(found.to_dense(), (torch.relu(A * 2) * 3).to_dense())


def test_gradients_through_functions_that_torch_does_not_show_are_refused() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * 2

    def function(A: Any, X: Any) -> Any:
        return Twice.apply((A * 2) @ X)  # type: ignore[no-untyped-call]

    A, X = sparse(12, 12), dense(12, 2).requires_grad_()
    with pytest.raises(UnsupportedError, match=r"call \.clone"):
        scorch.compile(function)(A, X).sum().backward()
    fixed = scorch.compile(lambda A, X: Twice.apply(((A * 2) @ X).clone()))  # type: ignore[no-untyped-call]
    fixed(A, X).sum().backward()
    torch.testing.assert_close(X.grad, 4 * A.to_dense().sum(0)[:, None].expand(12, 2))


def test_results_say_where_they_will_be() -> None:
    def function(A: Any, X: Any) -> Any:
        scaled = A * 2
        assert scaled.device == (scaled @ X).device == X.device
        return scaled @ X

    A, X = sparse(12, 12), dense(12, 2)
    same(scorch.compile(function)(A, X), function(A, X))


def test_gradients_are_tracked_where_the_call_stood() -> None:
    def function(A: Any, X: Any) -> Any:
        with torch.no_grad():
            fixed = torch.relu(A * 2) * 3
        return torch.relu(fixed @ X + 1)

    check(function, sparse(6, 6), dense(6, 2), one_kernel=False)


def test_gradients_of_gradients_read_what_was_computed_before() -> None:
    def function(A: Any, d: Any, X: Any) -> Any:
        with torch.no_grad():
            fixed = torch.relu(A * 2) * 3
        return torch.relu((A * fixed) * d[:, None]) @ X

    check(function, sparse(6, 6), dense(6), dense(6, 2), one_kernel=False)


def test_inference_mode_and_functorch() -> None:
    args = sparse(6, 6), dense(6).abs(), dense(6, 2), dense(2)
    compiled = scorch.compile(gcn)
    with torch.inference_mode():
        same(compiled(*args), gcn(*args))
    A, d, X, b = args
    found = torch.func.grad(lambda X: compiled(A, d, X, b).square().sum())(X)
    torch.testing.assert_close(found, torch.func.grad(lambda X: gcn(A, d, X, b).square().sum())(X))


# functions, modules, torch.compile -------------------------------------------------------------------


def test_modules_train() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.A = torch.nn.Parameter(sparse(6, 6))
            self.lin = torch.nn.Linear(3, 2, dtype=torch.float64)

        def forward(self, X: torch.Tensor) -> torch.Tensor:
            return torch.relu((self.A * 2) @ self.lin(X) + 1)

    torch.manual_seed(0)
    layer = Layer()
    compiled = scorch.compile(layer)
    X = dense(6, 3)
    truth = layer(X).sum()
    assert set(compiled.state_dict()) == {f"_orig_mod.{name}" for name in layer.state_dict()}
    found = compiled(X).sum()
    torch.testing.assert_close(found, truth)
    truth.backward()
    expected = [plain(p.grad) for p in layer.parameters()]
    layer.zero_grad()
    found.backward()
    for parameter, gradient in zip(compiled.parameters(), expected, strict=True):
        torch.testing.assert_close(plain(parameter.grad), gradient)


def test_compiled_functions_inside_of_others_are_joined_with_them() -> None:
    inner = scorch.compile(lambda A: A * 2)
    outer = scorch.compile(lambda A, X: torch.relu(inner(A) @ X))
    args = sparse(12, 12), dense(12, 2)
    same(outer(*args), torch.relu((args[0] * 2) @ args[1]))
    assert scorch.explain(outer, *args).groups[0].calls == ("mul", "matmul", "relu")


def test_dense_functions_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def fake(function: Function, **options: Any) -> Function:
        asked.append(options)
        return function

    monkeypatch.setattr(torch, "compile", fake)
    compiled = scorch.compile(lambda x: x * 2, dynamic=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert asked == [{"dynamic": True}]
    same(compiled(sparse(6, 6)), sparse(6, 6) * 2)


class Net(torch.nn.Module):
    """Dense parts before and between sparse products."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        kind = {"dtype": torch.float64}
        self.head = torch.nn.Sequential(torch.nn.Linear(3, 4, **kind), torch.nn.ReLU())
        self.mix = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(4, 4, **kind), torch.nn.Tanh()))
        self.last = torch.nn.Linear(4, 2, **kind)

    def forward(self, A: Any, X: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu((A * 2) @ self.head(X) + 1)
        return torch.relu((A * 3) @ self.last(self.mix(hidden)))


def test_dense_submodules_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fake(function: Function, **options: Any) -> Function:
        def compiled(*args: Any, **kwargs: Any) -> Any:
            asked.append(options)
            assert all(type(arg) is torch.Tensor for arg in args)
            return function(*args, **kwargs)

        return compiled

    monkeypatch.setattr(torch, "compile", fake)
    net, A, X = Net(), sparse(6, 6), dense(6, 3)
    compiled = scorch.compile(net, dynamic=True)
    for times in (0, 2, 4):
        same(compiled(A, X), net(A, X))
        assert asked == [{"dynamic": True}] * times
    assert all("_compiled_call_impl" not in module.__dict__ for module in net.modules())
    assert scorch.explain(compiled, A, X).dense == ("head", "mix")
    assert "compiled by torch.compile: head, mix" in str(scorch.explain(compiled, A, X))
    for found, expected in zip(gradients(compiled, (A, X)), gradients(net, (A, X)), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("is_part", [False, True], ids=["alone", "after a product"])
def test_torch_compiles_its_own_containers(is_part: bool) -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    parts = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()

    class After(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = parts

        def forward(self, A: Any, X: torch.Tensor) -> torch.Tensor:
            return self.parts(A @ X)

    model = After() if is_part else parts
    args = (sparse(6, 6), dense(6, 4)) if is_part else (dense(6, 4),)
    compiled = scorch.compile(model, backend=backend)
    for _ in range(3):
        same(compiled(*args), model(*args))
    assert len(graphs) == 1


def test_dense_submodules_run_as_they_are_where_torch_cannot_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(function: Function, **options: Any) -> Function:
        def compiled(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("no compiler")

        return compiled

    monkeypatch.setattr(torch, "compile", fake)
    net, A, X = Net(), sparse(6, 6), dense(6, 3)
    compiled = scorch.compile(net)
    for _ in range(3):
        same(compiled(A, X), net(A, X))
    assert scorch.explain(compiled, A, X).failed[0] == "head (RuntimeError: no compiler)"
    assert "run uncompiled, because torch.compile failed: head (" in str(scorch.explain(compiled, A, X))
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):  # the user's own
        compiled(A, dense(6, 5))


def test_submodules_that_meet_sparse_tensors_stay_with_us() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.A = torch.nn.Parameter(sparse(12, 12))
            self.parts = torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.Tanh()])

        def forward(self, X: torch.Tensor) -> torch.Tensor:
            return self.parts[1](self.parts[0]((self.A * 2) @ X))

    model = torch.nn.Sequential(torch.nn.ReLU(), Layer())
    compiled = scorch.compile(model)
    for _ in range(2):
        same(compiled(dense(12, 3)), model(dense(12, 3)))
    found = scorch.explain(compiled, dense(12, 3))
    assert found.dense == () and found.groups[0].calls == ("mul", "matmul", "relu", "tanh")


def test_it_is_a_decorator() -> None:
    @scorch.compile(dynamic=True)
    def scaled(A: Any) -> Any:
        """Twice the positive part."""
        return torch.relu(A) * 2

    assert scaled.__name__ == "scaled" and scaled.__doc__ == "Twice the positive part."
    same(scaled(sparse(6, 6)), torch.relu(sparse(6, 6)) * 2)


@pytest.mark.cpu("calls are joined there")
def test_explanation_names_what_was_not_joined() -> None:
    def function(A: Any) -> Any:
        return torch.sin(torch.relu(A) * 2) * 3

    text = str(scorch.explain(scorch.compile(function), sparse(6, 6)))
    assert "one kernel: relu, mul" in text
    assert "not fused, because no rule fuses them: sin" in text
    assert "not fused: mul\n  a single call" in text


@pytest.mark.cpu("calls are joined there")
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (
            lambda A, P: A.bool() * (P @ P.T),
            "mul: fused kernels take float32 and float64, but an operand has",
        ),
        (
            lambda A, P: (P @ P.T).sparse_mask(A),
            "sparse_mask: it reads all of a tensor; .* A \\* \\(P @ Q.T\\)",
        ),
        (lambda A, P: torch.mul(A, P @ P.T, out=None) * A.half(), "mul: .* torch.float16; .* .float\\(\\)"),
    ],
)
def test_explanation_says_why_a_call_is_not_joined(function: Any, reason: str) -> None:
    text = str(scorch.explain(scorch.compile(function), sparse(6, 6, density=0.2), dense(6, 3)))
    assert re.search(f"not fused: {reason}", text), text


def test_explanation_has_the_names_of_arguments() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(dense(3))

        def forward(self, graph: Any, x: Any) -> Any:
            return torch.relu(graph @ x + self.bias)

    operands = sparse(8, 8, density=0.1), dense(8, 3)
    compiled = scorch.compile(Layer())
    with torch.no_grad():
        for _ in range(2):  # recorded, and looked up
            plan = scorch.explain(compiled, *operands)
            assert "R[i,k] = relu(sum(j, graph[i,j] * x[j,k]) + bias[k])" in str(plan)
            assert "source, in which graph is A1" in plan.to_html()
        traced = scorch.explain(compiled, runs=1)(*operands)
    assert traced.kernels[0].statement == "R[i,k] = relu(sum(j, graph[i,j] * x[j,k]) + bias[k])"
    plan = scorch.explain(scorch.compile(lambda R, x: torch.relu(R @ x)), *operands)
    assert re.search(r"T\d+\[i,k\] = relu\(sum\(j, R\[i,j\] \* x\[j,k\]\)\)", str(plan))


def test_explanation_names_calls_on_dense_tensors() -> None:
    def function(A: Any, x: Any, s: Any, b: Any) -> Any:
        return torch.relu(A @ (x * s).transpose(0, 1) + b)

    operands = [torch.ones(*shape, dtype=torch.float64) for shape in ((3, 6), (6,), (3,))]
    plan = scorch.explain(scorch.compile(function), sparse(6, 6, density=0.1), *operands)
    assert "not fused, because they read dense tensors only: mul" in str(plan).splitlines()
    assert plan.to_dict()["dense_calls"] == ["mul"]  # not transpose, which computes nothing


@pytest.mark.cpu("calls are joined there")
def test_explanation_as_a_page_and_as_json() -> None:
    compiled = scorch.compile(lambda A: torch.sin(torch.relu(A) * 2))
    plan = scorch.explain(compiled, sparse(6, 6))
    document = plan.to_html()
    assert document.startswith("<!doctype html>") and "relu, mul" in document and "sin" in document
    assert document.count("<details>") == 2 and plan._repr_html_() in document  # the source, its helpers
    assert "1 fused kernel, 1 other sparse call" in document
    assert json.loads(json.dumps(plan.to_dict()))["others"] == ["sin"]
    assert repr(plan) == "<1 fused kernel, 1 other sparse call; print it to read it>"
    empty = scorch.explain(scorch.compile(torch.relu), torch.ones(2))
    assert str(empty) == "no calls on sparse tensors" and "No calls" in empty.to_html()


@pytest.mark.cpu("calls are joined there")
def test_page_of_a_fused_kernel_draws_tensors_loops_orders_and_times() -> None:
    A, X, bias = sparse(40, 30, density=0.1), dense(30, 4), dense(4)
    compiled = scorch.compile(lambda A, X, bias: torch.relu(A @ X + bias))
    plan = scorch.explain(compiled, A, X, bias, measure=True, runs=1)
    [group] = plan.groups
    assert [(facts.name, facts.shape) for facts in group.operands] == [
        ("A", (40, 30)),
        ("X", (30, 4)),
        ("bias", (4,)),
    ]
    [result] = group.results
    assert (result.name, result.shape) == ("R", (40, 4))
    assert group.operands[0].nnz == A.nnz and "<svg" in group.operands[0].picture
    [step] = group.steps
    assert step.statement == "R[i,k] = relu(sum(j, A[i,j] * X[j,k]) + bias[k])"
    assert step.loop_order == ("i", "j", "k") and step.walks[1] == "over the compressed level of A"
    assert group.predicted and group.measured and "measured" in str(plan)
    page = plan.to_html()
    assert page.count("<svg") == 4 and page.count('class="loop"') == 3
    assert page.count('class="bar') == 2 + 1 + len(step.rejected) and step.rejected
    assert "scalar multiply-adds" in page and "hl-keyword" in page
    groups = json.loads(json.dumps(plan.to_dict()))["groups"]
    assert groups[0]["steps"][0]["loop_order"] == ["i", "j", "k"]
    traced = scorch.explain(compiled, runs=1)(A, X, bias)
    [kernel] = traced.kernels
    assert kernel.loop_order == ("i", "j", "k") and kernel.operands == group.operands
    assert traced.to_html().count('class="loop"') == 3
    unmeasured = scorch.explain(compiled, A, X, bias)
    assert unmeasured.groups[0].measured is None and "pass measure=True" in unmeasured.to_html()


@pytest.mark.cpu("calls are joined there")
def test_page_of_a_fused_kernel_nests_all_its_statements() -> None:
    def attention(S: Any, Q: Any, K: Any, V: Any) -> Any:
        return scorch.sparse.softmax(S * (Q @ K.T), -1) @ V

    operands = sparse(20, 20, density=0.2), dense(20, 4), dense(20, 4), dense(20, 4)
    [group] = scorch.explain(scorch.compile(attention), *operands).groups
    assert len(group.steps) > 1 and {step.loop_order[0] for step in group.steps} == {"i"}
    loops = sum(len(step.loop_order) - 1 for step in group.steps) + 1
    assert group.to_html().count('class="loop"') == loops
    assert group.statements.splitlines()[: len(group.steps)] == [step.statement for step in group.steps]
    assert not re.search(r"\bP\b", group.to_html().partition("<details>")[0])


@pytest.mark.cpu("calls are joined there")
def test_page_of_fused_values_in_any_format_draws_their_pattern() -> None:
    A = sparse(6, 6).to_format("coo")
    [group] = scorch.explain(scorch.compile(lambda A: torch.relu(A) * 2), A).groups
    assert [str(facts.format) for facts in (*group.operands, *group.results)] == ["coo", "coo"]
    assert group.to_html().count("<svg") == 2


@pytest.mark.cpu("layers are fused there")
def test_page_of_a_fused_layer_draws_its_weight() -> None:
    layer = scorch.nn.SparseLinear(16, 8, sparsity=0.5)
    with torch.no_grad():
        compiled = scorch.compile(lambda x: torch.relu(layer(x)) + 1)
        [group] = scorch.explain(compiled, torch.rand(4, 16), measure=True, runs=1).groups
    facts = {tensor.name: tensor for tensor in (*group.operands, *group.results)}
    assert list(facts) == ["x", "W", "bias", "y"] and facts["y"].shape == (4, 8)
    assert facts["W"].shape == (8, 16) and facts["W"].picture and group.measured
    page = group.to_html()
    assert "y[...,i] = relu(" in page and "a handwritten routine" in page


@pytest.mark.cpu("calls are joined there")
def test_traced_calls_of_a_compiled_function_compute_something() -> None:
    compiled = scorch.compile(lambda A, X: torch.relu(A @ X))
    traced = scorch.explain(compiled, runs=1)(sparse(8, 8, density=0.2), dense(8, 3))
    assert [call.name for call in traced.calls if not call.kernels] == []


def test_only_functions_and_modules_are_compiled() -> None:
    with pytest.raises(OperandError, match=r"expected a function .* but got a SparseTensor"):
        scorch.compile(sparse(6, 6))


# any chain -------------------------------------------------------------------------------------------

ON_SPARSE: list[tuple[str, Function]] = [
    ("scaled", lambda S, t: S * 1.5),
    ("halved", lambda S, t: S / 2),
    ("negative", lambda S, t: -S),
    ("relu", lambda S, t: torch.relu(S)),
    ("leaky", lambda S, t: F.leaky_relu(S, 0.1)),
    ("elu", lambda S, t: F.elu(S)),
    ("tanh", lambda S, t: S.tanh()),
    ("square", lambda S, t: S.square()),
    ("sin", lambda S, t: S.sin()),
    ("rows", lambda S, t: S * t["row"][:, None]),
    ("columns", lambda S, t: S * t["column"]),
    ("divided", lambda S, t: S / t["row"].exp()[:, None]),
    ("places", lambda S, t: t["full"] * S),
    ("number", lambda S, t: S * t["number"]),
    ("with itself", lambda S, t: S + S * S),
    ("with the first", lambda S, t: S - t["S"]),
    ("softmax", lambda S, t: torch.sparse.softmax(S, 1)),
    ("log_softmax", lambda S, t: torch.sparse.log_softmax(S, -1)),
    ("sampled", lambda S, t: torch.sparse.sampled_addmm(S, t["Q"], t["K"], alpha=0.5)),
    ("einsum", lambda S, t: scorch.einsum("ij,ik,kj->ij", S, t["Q"], t["K"])),
    ("masked product", lambda S, t: S * (t["Q"] @ t["K"] * 0.5)),
    ("evaluate", lambda S, t: scorch.evaluate("B[i,j] = -S[i,j] * r[i]", S=S, r=t["row"])),
]
TO_DENSE: list[tuple[str, Function]] = [
    ("matmul", lambda S, t: S @ t["X"]),
    ("mm", lambda S, t: torch.sparse.mm(S, t["X"])),
    ("einsum to dense", lambda S, t: scorch.einsum("ij,jk,ik->ik", S, t["X"], t["Y"])),
    ("addmm", lambda S, t: torch.addmm(t["bias"], S, t["X"])),
    ("row sums", lambda S, t: S.sum(1)[:, None] * t["Y"]),
]
ON_DENSE: list[tuple[str, Function]] = [
    ("bias", lambda D, t: D + t["bias"]),
    ("subtracted", lambda D, t: 1 - D),
    ("rows", lambda D, t: D * t["row"][:, None]),
    ("added", lambda D, t: t["Y"] + D),
    ("relu", lambda D, t: F.relu(D)),
    ("sigmoid", lambda D, t: D.sigmoid()),
    ("elu", lambda D, t: F.elu(D, 0.5)),
    ("doubled", lambda D, t: D + D),
    ("product", lambda D, t: D @ t["W"]),
    ("in place", lambda D, t: D.clone().mul_(2)),
]


@st.composite
def chains(draw: Any) -> list[tuple[str, Function]]:
    found = draw(st.lists(st.sampled_from(ON_SPARSE), max_size=5))
    if draw(st.booleans()):
        found = [
            *found,
            draw(st.sampled_from(TO_DENSE)),
            *draw(st.lists(st.sampled_from(ON_DENSE), max_size=4)),
        ]
    return found


@FEWER
@given(
    chains(),
    st.sampled_from(["csr", "csr", "csr", "coo", "csc", "dcsr"]),
    st.sampled_from([(6, 7), (1, 5), (4, 1), (9, 3)]),
    st.sampled_from([0.0, 0.2, 0.5]),
    st.integers(0, 3),
)
def test_any_chain_gives_what_it_gives_outside(
    chain: list[tuple[str, Function]], format: str, shape: tuple[int, int], density: float, seed: int
) -> None:
    rows, columns = shape
    tensors = {
        "S": sparse(rows, columns, format, density, seed),
        "row": dense(rows, seed=1),
        "column": dense(columns, seed=2),
        "full": dense(rows, columns, seed=3),
        "number": dense(1, seed=4)[0],
        "Q": dense(rows, 2, seed=5),
        "K": dense(2, columns, seed=6),
        "X": dense(columns, 3, seed=7),
        "Y": dense(rows, 3, seed=8),
        "W": dense(3, 3, seed=9),
        "bias": dense(3, seed=10),
    }
    names = list(tensors)

    def function(*given: Any) -> Any:
        named = dict(zip(names, given, strict=True))
        found = named["S"]
        for _, step in chain:
            found = step(found, named)
        return found * 1

    args = tuple(tensors.values())
    compiled = scorch.compile(function)
    same(compiled(*args), function(*args))
    for found, expected in zip(gradients(compiled, args), gradients(function, args), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_fullgraph_warns_where_no_graph_is_captured():
    A = scorch.eye(3, format="csr")
    compiled = scorch.compile(lambda A, x: A @ x, fullgraph=True)
    with pytest.warns(UserWarning, match="fullgraph=True has no effect.*import torch"):
        compiled(A, torch.ones(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(A, torch.ones(3))
        scorch.compile(torch.relu, fullgraph=True, backend="eager")(torch.ones(3))
