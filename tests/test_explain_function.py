"""``scorch.explain(fn)(*args)``: every kernel of a function is told, with what could be spared."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import scorch
from scorch._src.events import LISTENERS
from scorch._src.explain.function_report import CallExplanation, FunctionExplanation
from scorch._src.explain.trace_calls import search_qualified_name
from scorch.errors import ArgumentError, KeywordError, NotationError, ShapeError


def sparse(format: str = "csr", size: int = 60) -> scorch.SparseTensor:
    draw = torch.Generator().manual_seed(7)
    dense = torch.rand(size, size, generator=draw) * (torch.rand(size, size, generator=draw) < 0.1)
    return scorch.from_torch(dense, format=format)


def propagate(A, x, W):
    h = torch.relu(A @ (x @ W))
    return scorch.einsum("ij,jk->ik", A, h)


def test_every_kernel_of_a_function_is_listed() -> None:
    A, x, W = sparse(), torch.rand(60, 8), torch.rand(8, 4)
    found = scorch.explain(propagate, runs=2)(A, x, W)
    assert isinstance(found, FunctionExplanation)
    assert found.name == "propagate" and found.runs == 2
    assert [call.name for call in found.calls] == ["matmul", "matmul", "relu", "einsum"]
    assert [call.is_sparse for call in found.calls] == [False, True, False, True]
    first, second = found.kernels
    for kernel in (first, second):
        assert kernel.kind == "kernel" and kernel.loop_order == ("i", "j", "k")
        assert kernel.measured > 0 and kernel.predicted is not None and kernel.predicted > 0
        assert kernel.bytes >= A.nnz * 8 + 60 * 4 * 4 * 2
        assert str(kernel.operands[0].format) == "csr" and kernel.operands[0].nnz == A.nnz
        assert not kernel.converted and "scorch_compute" in kernel.source
    assert second.operands[1].name == "B (h)"  # what the kernel calls it, and what the function does
    torch.testing.assert_close(found.result, propagate(A, x, W))


def test_calls_are_found_in_the_text_of_the_function() -> None:
    found = scorch.explain(propagate, runs=1)(sparse(), torch.rand(60, 8), torch.rand(8, 4))
    assert found.calls[-1].line == 'return scorch.einsum("ij,jk->ik", A, h)'
    assert found.calls[-1].where.startswith("test_explain_function.py:")


def test_what_is_transposed_is_told_with_a_cure_that_works() -> None:
    A, B = sparse("csr"), sparse("csc")

    def product(A, B):
        return A @ B

    found = scorch.explain(product, runs=2)(A, B)
    [kernel] = found.kernels
    assert "transposed to csr" in kernel.converted[0]
    assert kernel.result is not None and kernel.result.nnz == (A @ B).nnz
    assert "keep B.to_format('csr')" in found.advice[0]
    again = scorch.explain(product, runs=2)(A, B.to_format("csr"))
    assert not again.advice and not again.kernels[0].converted


def test_slices_that_are_copied_are_told() -> None:
    wide = torch.rand(60, 20)

    def product(A, x):
        return A @ x

    found = scorch.explain(product, runs=1)(sparse(), wide[:, :7])
    assert "not contiguous" in found.kernels[0].converted[0]
    assert "x.contiguous()" in found.advice[0]


def test_conversions_inside_the_function_are_told() -> None:
    def product(A, x):
        B = A.to_format("csc")
        return x @ B

    found = scorch.explain(product, runs=1)(sparse(), torch.rand(3, 60))
    assert any("converts A" in text for text in found.advice)


def test_dense_copies_are_told() -> None:
    def inverse(A):
        return torch.linalg.inv(A)

    eye = scorch.eye(20, format="csr")
    found = scorch.explain(inverse, runs=1)(eye)
    assert "dense copy" in {kernel.kind for kernel in found.kernels}
    assert any("falls back to dense" in text for text in found.advice)
    found = scorch.explain(torch.softmax, eye, 1)
    assert any("use torch.sparse.softmax(S, dim)" in text for text in found.advice)


def layer(A, d, X):
    return torch.relu((A * d[:, None]) @ X)


def test_what_compile_would_join_is_said() -> None:
    args = sparse(), torch.rand(60), torch.rand(60, 8)
    found = scorch.explain(layer, runs=1)(*args)
    assert found.joinable == (("mul", "matmul", "relu"),) and not found.joined
    assert any("scorch.compile" in text for text in found.advice)


def test_what_compile_has_joined_is_said() -> None:
    args = sparse(), torch.rand(60), torch.rand(60, 8)
    found = scorch.explain(scorch.compile(layer), runs=2)(*args)
    assert found.joined == (("mul", "matmul", "relu"),) and not found.joinable
    assert [kernel.kind for kernel in found.kernels] == ["fused"]
    assert found.kernels[0].predicted is not None
    torch.testing.assert_close(found.result, layer(*args))


def test_modules_and_their_gradients() -> None:
    torch.manual_seed(0)
    conv = scorch.nn.GCNConv(8, 4)
    A, x = sparse(), torch.rand(60, 8)

    def step(x, A):
        conv.zero_grad()
        conv(x, A).square().sum().backward()

    found = scorch.explain(step, runs=1)(x, A)
    names = [call.name for call in found.calls if call.kernels]
    assert names == ["GCNConv", "backward"]
    of_module = scorch.explain(conv, runs=1)(x, A)
    assert of_module.name == "GCNConv" and len(of_module.kernels) == 1


def test_routines_are_told() -> None:
    mask = scorch._src.nn.masks.window(32, 4)
    Q = torch.rand(1, 2, 32, 8)

    def attend(Q, mask):
        return F.scaled_dot_product_attention(Q, Q, Q, attn_mask=mask)

    found = scorch.explain(attend, runs=1)(Q, mask)
    assert any(k.kind == "routine" and "attention" in k.statement for k in found.kernels)


def test_functions_without_kernels() -> None:
    found = scorch.explain(torch.relu, runs=1)(sparse())
    assert found.name == "relu" and not found.kernels
    assert "no kernel" in str(found)
    nothing = scorch.explain(lambda: None, runs=1)()
    assert "no Scorch kernel ran" in str(nothing) and "consumed" not in str(nothing)
    generator = scorch.explain(lambda: (sparse() @ x for x in ()), runs=1)()
    assert "returned an iterator, which must be consumed" in str(generator)
    dense = scorch.explain(lambda x: x + 1, runs=1)(torch.ones(2))
    assert not dense.kernels and dense.result.sum() == 4


def test_a_function_of_torch_itself_is_named_with_its_sparse_operands() -> None:
    mask = sparse().bool()
    q, k, v = torch.rand(3, 1, 60, 8).unbind()
    found = scorch.explain(F.scaled_dot_product_attention, runs=1)(q, k, v, attn_mask=mask)
    assert [call.name for call in found.calls] == ["scaled_dot_product_attention"]
    (routine,) = found.kernels
    assert [facts.shape for facts in routine.operands] == [(1, 60, 8)] * 3 + [(60, 60)]


def test_functions_of_scorch_that_run_no_kernel_are_listed() -> None:
    h = torch.rand(400, 300)
    found = scorch.explain(lambda: scorch.topk_sparse(h, 4), runs=1)()
    assert [call.name for call in found.calls] == ["topk_sparse"] and not found.kernels


def test_methods_of_layers_are_named() -> None:
    torch.manual_seed(0)
    found = scorch.explain(scorch.nn.TopKAutoencoder(60, 500, 4), runs=1)(torch.rand(300, 60))
    names = [call.name for call in found.calls]
    assert names[-3:] == ["topk_sparse", "TopKAutoencoder.decode", "add"]
    assert [bool(call.kernels) for call in found.calls][-3:] == [False, True, False]


def test_report_json_and_html() -> None:
    found = scorch.explain(propagate, runs=1)(sparse(), torch.rand(60, 8), torch.rand(8, 4))
    report = str(found)
    for words in (
        "2 kernels",
        "loops",
        "predicted",
        "measured",
        "csr, 60 x 60",
        "h = torch.relu(A @ (x @ W))",
    ):
        assert words in report
    assert max(map(len, report.splitlines())) <= 115
    read = json.loads(json.dumps(found.to_dict()))
    assert read["calls"][1]["kernels"][0]["loop_order"] == ["i", "j", "k"]
    html = found._repr_html_()
    assert html.count("<details>") >= 3 and "sum(j, A[i,j] * B[j,k])" in html and "<script" not in html
    of_text = scorch.explain("ij,jk->ik", sparse(), torch.rand(60, 2))._repr_html_()
    assert "<table>" in of_text and "scorch_compute" in of_text


def test_html_escapes_what_users_write() -> None:
    def compare(A, x):
        return (A @ x) if "<b>" < "<c>" else None

    html = scorch.explain(compare, runs=1)(sparse(), torch.rand(60))._repr_html_()
    assert "<b>&quot;" not in html and "&lt;b&gt;" in html


def test_errors_of_the_function_are_its_own_and_nobody_listens_afterwards() -> None:
    with pytest.raises(ShapeError):
        scorch.explain(propagate)(sparse(), torch.rand(61, 8), torch.rand(8, 4))
    state = iter([0, 0, 1])

    def fails_while_watched(A, x):
        if next(state):
            raise ZeroDivisionError
        return A @ x

    with pytest.raises(ZeroDivisionError):
        scorch.explain(fails_while_watched, runs=1)(sparse(), torch.rand(60))
    assert not LISTENERS


def test_wrong_arguments() -> None:
    with pytest.raises(ArgumentError, match="runs"):
        scorch.explain(propagate, runs=0)
    with pytest.raises(NotationError, match="or a function"):
        scorch.explain(3)


def test_kernels_of_other_threads_are_not_told() -> None:
    A, x = sparse(), torch.rand(60, 3)

    def product(A, x):
        other = threading.Thread(target=lambda: sparse("csc") @ torch.rand(60, 5))
        other.start()
        other.join()
        return A @ x

    assert len(scorch.explain(product, runs=1)(A, x).kernels) == 1


def test_watching_changes_no_numbers() -> None:
    A, x, W = sparse(), torch.rand(60, 8, requires_grad=True), torch.rand(8, 4)
    plain = propagate(A, x, W)
    plain.sum().backward()
    expected, x.grad = x.grad, None

    def step():
        x.grad = None
        propagate(A, x, W).sum().backward()
        return x.grad

    found = scorch.explain(step, runs=2)()
    torch.testing.assert_close(found.result, expected)
    assert [call.name for call in found.calls if call.kernels] == ["matmul", "einsum", "backward"]


def test_functions_inside_of_torch_func() -> None:
    A, x = sparse(), torch.rand(60, 3)

    def gradient(x):
        return torch.func.grad(lambda z: (A @ z).sum())(x)

    found = scorch.explain(gradient, runs=1)(x)
    torch.testing.assert_close(found.result, gradient(x))
    batched = scorch.explain(lambda V: torch.vmap(lambda v: A @ v)(V), runs=1)(torch.rand(4, 60))
    assert batched.result.shape == (4, 60)


def test_transposes_are_called_by_their_names() -> None:
    def by_columns(A, x):
        return A @ x.T

    [text] = scorch.explain(by_columns, runs=1)(sparse(size=400), torch.rand(64, 400)).advice
    assert "keep x.T.contiguous()" in text

    def turned(A, x):
        return A.T @ x

    for text in scorch.explain(turned, runs=1)(sparse(size=400), torch.rand(400, 4)).advice:
        assert "A.T" in text


def test_nothing_is_advised_of_what_only_gradients_read() -> None:
    A, x = sparse(), torch.rand(60, 8, requires_grad=True)

    def step(A, x):
        x.grad = None
        (A @ x).sum().backward()

    for form in ("csr", "csc"):
        assert not scorch.explain(step, runs=1)(A.to_format(form), x).advice


def test_calls_that_scorch_makes_itself_are_no_calls_of_the_user() -> None:
    def product(A, B):
        return scorch.einsum("ij,jk->ik", A, B)

    found = scorch.explain(product, runs=1)(sparse("csr"), sparse("csc"))
    assert [call.name for call in found.calls] == ["einsum"]


def test_what_is_drawn_afterwards_does_not_change() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    scorch.explain(lambda A: A @ torch.rand(60), runs=2)(sparse())
    assert torch.equal(torch.rand(3), expected)


def test_functions_that_torch_compiled() -> None:
    compiled = torch.compile(lambda A, x: torch.relu(A @ x), backend="eager")
    A, x = sparse(), torch.rand(60, 3)
    found = scorch.explain(compiled, runs=1)(A, x)
    assert len(found.kernels) == 1
    torch.testing.assert_close(found.result, torch.relu(A @ x))


def test_only_the_last_run_keeps_tensors() -> None:
    seen = []

    def product(A, x):
        found = A @ x
        seen.append(weakref.ref(found))
        return found

    explained = scorch.explain(product, runs=3)(sparse(), torch.rand(60, 3))
    gc.collect()
    assert explained.result is not None
    assert sum(reference() is not None for reference in seen) == 1


def test_shares_are_of_the_watched_time() -> None:
    call = CallExplanation("matmul", "a.py:1", "A @ x", True, 1.0)
    report = str(FunctionExplanation("f", (call,), seconds=1.0, watched=2.0, runs=3))
    assert "1 s (median of 3 calls; 2 s while traced, to which" in report and "matmul: 1 s, 50%" in report
    assert "between the calls, in Python: 1 s, 50%" in report


def test_times_add_up_to_the_traced_time() -> None:
    def products(A, x):
        return torch.relu(A @ x) + torch.sin(x)

    explained = scorch.explain(products, runs=4)(sparse(), torch.rand(60, 3))
    total = sum(call.seconds for call in explained.calls) + explained.seconds_between
    assert total == pytest.approx(explained.watched)
    assert explained._repr_html_().count("between the calls") == 1


def test_generators_are_said_to_do_nothing() -> None:
    def products(A, x):
        yield A @ x

    assert "generator" in str(scorch.explain(products, runs=1)(sparse(), torch.rand(60)))


def running() -> FrameType:
    return sys._getframe(0)


class Base:
    def method(self) -> FrameType:
        return sys._getframe(0)

    @classmethod
    def of_class(cls) -> FrameType:
        return sys._getframe(0)

    @contextlib.contextmanager
    def wrapped(self) -> Iterator[FrameType]:
        yield sys._getframe(0)


class Derived(Base):
    def other(self) -> FrameType:
        return self.method()


def test_functions_are_named_without_the_help_of_new_pythons() -> None:
    with Derived().wrapped() as wrapped:
        frames = [running(), Base().method(), Derived().other(), Derived.of_class(), wrapped]
        names = [search_qualified_name(frame) for frame in frames]
    assert names == ["running", "Base.method", "Base.method", "Base.of_class", "Base.wrapped"]
    assert "<locals>" in search_qualified_name((lambda: sys._getframe(0))())


def test_all_explanations_print_sources_on_request() -> None:
    A, x = scorch.eye(3, format="csr"), torch.ones(3, 2)
    compiled = scorch.compile(lambda A, x: torch.relu(A * 2) @ x)
    plans: list[Any] = [scorch.explain("ij,jk->ik", A, x), scorch.explain(lambda: A @ x)()]
    plans.append(scorch.explain(compiled, A, x))
    for plan in plans:
        assert "scorch_compute" in plan.report(source=True)
        assert "scorch_compute" not in plan.report(source=False)


def test_misspelled_keywords_of_explain_are_no_operands() -> None:
    A, x = scorch.eye(3, format="csr"), torch.ones(3)
    with pytest.raises(KeywordError, match="keyword argument 'meassure'; did you mean 'measure'"):
        scorch.explain("ij,j->i", A, x, meassure=True)
