"""``scorch.explain`` states what the planner decided, and why.

The files in ``golden/`` hold whole explanations; ``SCORCH_UPDATE_GOLDEN=1 pytest tests/test_explain.py``
writes them anew, for someone to read the difference.
"""

from __future__ import annotations

import html
import json
import os
import re
import types
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import scorch
from golden_statements import NAMES, sparse, statements
from scorch._src.compiler.target import Target
from scorch._src.explain.explain_statement import explain
from scorch._src.formats import Format
from scorch._src.html.highlight import highlight
from scorch.errors import NotationError, OperandError, ShapeError

GOLDEN = Path(__file__).resolve().parent / "golden"


def test_spmm_runs_row_by_row_into_a_dense_result() -> None:
    found = explain("ij,jk->ik", sparse(100, 80, "csr"), torch.ones(80, 16))
    assert found.loop_order == ("i", "j", "k")
    assert found.result_format == Format("dense")
    [step] = found.steps
    assert step.kind == "kernel"
    assert [str(operand.format) for operand in step.operands] == ["csr", "dense"]
    assert step.operands[0].nnz == 1143
    assert step.conversions == ()
    assert step.workspace is None
    assert step.parallel
    assert "scorch_compute" in step.source == found.source


def test_spmspm_gathers_each_row_in_a_workspace() -> None:
    found = explain("ij,jk->ik", sparse(100, 80, "csr"), sparse(80, 60, "csr"))
    [step] = found.steps
    assert str(found.result_format) == "csr"
    assert step.workspace == "dense over k"
    assert step.result.nnz is None
    orders = [order.order for order in step.rejected]
    assert ("i", "k", "j") in orders  # the inner product
    inner = step.rejected[orders.index(("i", "k", "j"))]
    assert step.cost is not None and inner.total > step.cost.total
    assert "transposes B" in inner.reason
    assert len(orders) <= 5 and step.loop_order not in orders


def test_costs_have_parts() -> None:
    [step] = explain("ij,jk->ik", sparse(100, 80, "csr"), sparse(80, 60, "csr")).steps
    for order in (step.cost, step.paper, *step.rejected):
        assert order is not None
        assert order.total == pytest.approx(order.work + order.assembly + order.transposition)


def test_sddmm_shares_the_pattern() -> None:
    found = explain("ij,ik,jk->ij", sparse(100, 80, "csr"), torch.ones(100, 8), torch.ones(80, 8))
    [step] = found.steps
    assert step.assembly == "values on the sparsity pattern of A"
    assert step.result.nnz == step.operands[0].nnz
    assert "same sparsity pattern" in step.reasons[0]


def test_conflicting_orders_say_what_is_transposed() -> None:
    A, C = sparse(100, 80, "csr"), sparse(100, 80, "csc", step=11)
    [step] = explain("D[i,j] = A[i,j] + C[i,j]", A=A, C=C).steps
    [sentence] = step.conversions
    assert "is stored by j, i, but the loops run i, j: transposed to csr" in sentence
    assert step.cost is not None and step.cost.transposition > 0


def test_maximum_is_shown_as_its_three_steps() -> None:
    found = explain("y[i] = max(j, A[i,j])", A=sparse(20, 30, "csr"))
    assert [step.kind for step in found.steps] == ["kernel", "kernel", "torch"]
    assert "over the stored elements" in found.steps[0].purpose
    assert "number of stored elements" in found.steps[1].purpose
    assert found.steps[2].result.name == "y"
    assert found.source.count("scorch_compute(") == 2


def test_nested_reduction_comes_first() -> None:
    A = sparse(20, 30, "csr")
    found = explain("D[i,j] = A[i,j] / sum(k, A[i,k])", A=A)
    first, last = found.steps
    assert first.statement == "T1[i] = sum(k, A[i,k])"
    assert last.statement == "D[i,j] = A[i,j] / T1[i]"
    assert found.formats == {
        "A": Format("csr"),
        "T1": Format("dense", dims=1),
        "D": Format("csr"),
    }


def test_product_plus_sparse_gives_csr() -> None:
    given = {"A": sparse(20, 30, "csr"), "B": sparse(30, 20, "csr"), "C": sparse(20, 20, "dcsr")}
    assert str(explain("D[i,j] = A[i,k] * B[k,j] + C[i,j]", **given).result_format) == "csr"


def test_requested_format_is_named_as_the_reason() -> None:
    A = sparse(20, 30, "csr")
    found = explain("ij,kj->ik", A, A, format="coo")
    assert str(found.result_format) == "coo"
    assert found.steps[-1].reasons == ("requested",)


def test_adding_keeps_the_format_of_the_target() -> None:
    found = explain("D[i,j] += A[i,j]", A=sparse(20, 30, "csr"), D=sparse(20, 30, "csc"))
    assert str(found.result_format) == "csc"
    assert found.steps[-1].reasons == ("+= keeps the format of D",)


def test_dense_operands_go_to_torch() -> None:
    [step] = explain("ij,jk->ik", torch.ones(3, 4), torch.ones(4, 5)).steps
    assert (step.kind, step.source) == ("torch", "")


def test_dense_operands_with_a_sparse_format_take_a_second_step() -> None:
    found = explain("ij,jk->ik", torch.ones(3, 4), torch.ones(4, 5), format="csr")
    assert [step.kind for step in found.steps] == ["torch", "kernel"]
    assert {name: str(form) for name, form in found.formats.items()} == {
        "A": "dense",
        "B": "dense",
        "R_dense": "dense",
        "R": "csr",
    }


def test_loops_over_blocks_and_inside_them_are_named() -> None:
    A = scorch.from_torch(torch.eye(8), format="bsr(2,4)")
    (step,) = explain("ij,jk->ik", A, torch.ones(8, 3)).steps
    walks = dict(zip(step.loop_order, step.walks, strict=True))
    assert walks["i_out"] == "from 0 to 3" and walks["i_in"] == "from 0 to 1"
    assert walks["j_out"] == "over the compressed level of A" and walks["j_in"] == "from 0 to 3"


def test_nothing_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a kernel was compiled")

    A = sparse(20, 30, "csr")
    monkeypatch.setattr("scorch._src.backends.cpu.jit.load", load)
    explain("ij,kj,ik->i", A, A, torch.ones(20, 20))


def test_source_is_what_a_call_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    from scorch._src.backends.cpu import jit

    sources = []
    load = jit.load

    def record(source: str, *rest: Any) -> jit.Library:
        sources.append(source)
        return load(source, *rest)

    monkeypatch.setattr("scorch._src.backends.cpu.jit.load", record)
    A = sparse(23, 31, "csr")
    scorch.einsum("pq,rq->rp", A, A)
    assert explain("pq,rq->rp", A, A).source in sources


@pytest.mark.sampled(2)
@pytest.mark.parametrize("repeat", [1, 2, 6, 20])
def test_report_stays_short(repeat: int) -> None:
    A = sparse(20, 30, "csr")
    text = "D[i,j] = " + " + ".join(f"A[i,j] / max(k{n}, A[i,k{n}])" for n in range(repeat))
    lines = explain(text, A=A).report(source=False).splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines[1:])) <= 110


def test_forms_of_an_explanation() -> None:
    found = explain("ij,j->i", sparse(20, 30, "csr"), torch.ones(30))
    assert repr(found) == "Explanation('ij,j->i': A csr, B dense -> dense; loops i, j; 1 step)"
    assert (
        str(found) == f"source of step 1\n\n{found.steps[0].source.rstrip()}\n\n{found.report(source=False)}"
    )
    assert "<code>ij,j-&gt;i</code>" in found._repr_html_()
    assert json.loads(json.dumps(found.to_dict()))["steps"][0]["operands"][0]["format"] == "csr"
    with pytest.raises(AttributeError):
        found.text = ""  # type: ignore[misc]


def test_function_is_public() -> None:
    assert scorch.explain is explain


def test_errors_are_those_of_the_call() -> None:
    A = sparse(20, 30, "csr")
    with pytest.raises(ShapeError, match="index 'j' is 30 in operand 0"):
        explain("ij,jk->ik", A, A)
    with pytest.raises(NotationError, match=r"pass the tensors of .* by name"):
        explain("y[i] = A[i,j]", A)
    with pytest.raises(NotationError, match="by position, not by name"):
        explain("ij->i", A=A)
    with pytest.raises(NotationError, match="missing tensor for 'B'"):
        explain("y[i] = A[i,j] * B[i,j]", A=A)
    with pytest.raises(NotationError, match="expected an equation"):
        explain(A)
    with pytest.raises(OperandError, match="operand 0 must be a tensor, but got a str"):
        explain("ij->i", "csr")


@pytest.mark.parametrize("name", NAMES)
def test_explanation_is_the_golden_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Target("", 16, 32, 2, 1 << 20, 32 << 20)
    monkeypatch.setattr("scorch._src.compiler.vector.vectorize.target", lambda: machine)
    monkeypatch.setattr("scorch._src.backends.cpu.parallel.relative_cost", lambda threads: 1.0)
    quiet = types.SimpleNamespace(value=0)  # however busy the machine of the tests is
    monkeypatch.setattr("scorch._src.backends.cpu.parallel.busy_until", lambda: quiet)
    statement, operands, named = statements()[name]
    with scorch.settings(threads=4):
        text = explain(statement, *operands, **named).report(source=name.startswith("sp")) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("SCORCH_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "SCORCH_UPDATE_GOLDEN=1 writes it anew; read the diff"


# pages -----------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """The elements of a page by name; every one that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: object) -> None:
        self.counts[tag] += 1
        if tag not in ("br", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_draws_tensors_loops_orders_and_times() -> None:
    A, B = sparse(20, 30, "csr"), sparse(30, 25, "csc")
    found = explain("ij,jk->ik", A, B, format="csr", measure=True, runs=1)
    step = found.steps[0]
    assert step.measured is not None and step.measured > 0 and step.predicted is not None
    wanted = scorch.einsum("ij,jk->ik", A, B, format="csr")
    assert step.result.nnz == wanted.nnz and "<svg" in step.result.picture
    text = found.to_html()
    elements = Elements(text)
    assert elements.counts["svg"] == 3 and elements.counts["html"] == 1 and elements.counts["script"] == 0
    assert text.count('class="loop"') == 3 and "over the compressed level of A" in text
    assert text.count('class="bar') == 2 + 1 + len(step.rejected)
    for order in step.rejected:
        assert html.escape(order.reason) in text
    assert "http" not in text.replace("http://www.w3.org", "")
    assert "picture" not in json.dumps(found.to_dict()) and "predicted" in found.report()
    assert found._repr_html_() in text


def test_a_page_shows_the_functions_of_a_kernel_before_its_helpers() -> None:
    found = explain("ij,jk->ik", sparse(20, 30, "csr"), torch.rand(30, 4))
    text = re.sub("<[^>]*>", "", html.unescape(found.to_html()))
    own = text.index("scorch_compute(")
    assert text.index("// R[i,k] =") < own < text.index("types and helper functions") < text.index("typedef")
    assert "typedef" in found.source.partition("scorch_compute(")[0]
    assert "steps" not in text


def test_several_steps_are_announced() -> None:
    operands = {"A": sparse(20, 30, "csr"), "x": torch.rand(30, 4), "b": torch.rand(4)}
    found = explain("y[i,k] = relu(A[i,j] * x[j,k] + b[k])", **operands)
    sentence = "2 steps, which run one after the other: they are not fused"
    assert found.report(source=False).splitlines()[1] == sentence and sentence in found.to_html()
    lines = str(found).splitlines()  # sources come first, so that a terminal ends with the summary
    assert lines.index("source of step 1") == 0 < lines.index(sentence)


def test_a_result_on_a_known_pattern_is_drawn_without_computing() -> None:
    A = sparse(20, 30, "csr")
    step = explain("D[i,j] = A[i,j] * B[i,j]", A=A, B=torch.rand(20, 30)).steps[-1]
    assert step.measured is None and step.result.picture == step.operands[0].picture != ""
    Elements(explain("ij,jk->ik", torch.rand(3, 4), torch.rand(4, 5)).to_html())


def test_source_is_highlighted_and_escaped() -> None:
    text = highlight('#define A 1\nint f(void) { return a < 0x1F ? 2.5f : g("<b>"); } // done <i>\n')
    for part in (
        '<span class="hl-directive">#define A 1</span>',
        '<span class="hl-type">int</span> <span class="hl-function">f</span>',
        '<span class="hl-keyword">return</span> a &lt; <span class="hl-number">0x1F</span>',
        '<span class="hl-number">2.5f</span>',
        '<span class="hl-text">&quot;&lt;b&gt;&quot;</span>',
        '<span class="hl-comment">// done &lt;i&gt;</span>',
    ):
        assert part in text


def test_loops_over_blocks_are_explained() -> None:
    form = "bsr(2,4)"
    [step] = explain("ij,jk->ik", sparse(10, 12, form), torch.ones(12, 3)).steps
    walks = dict(zip(step.loop_order, step.walks, strict=True))
    assert walks["i_out"] == "from 0 to 4" and walks["i_in"] == "from 0 to 1"
    assert walks["j_out"] == "over the compressed level of A" and walks["j_in"] == "from 0 to 3"


def test_a_single_thread_is_explained() -> None:
    A = scorch.eye(3, format="csr")
    with scorch.settings(threads=1):
        assert "one thread: no more are allowed" in str(scorch.explain("ij,jk->ik", A, torch.ones(3, 2)))


def test_loops_that_scatter_are_not_said_to_run_in_vectors() -> None:
    A = scorch.rand(2000, 2000, density=0.01, format="csr")
    explained = scorch.explain("ij,jk->ik", A, A)
    assert "f32x" not in explained.source
    assert "innermost scalar k" in str(explained)
