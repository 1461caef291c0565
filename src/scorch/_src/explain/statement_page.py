"""The explanation of a statement as HTML: its tensors drawn, its loops nested, rejected orders as bars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from scorch._src.explain.step import OrderCost, StepExplanation, TensorFacts, format_cost, format_memory
from scorch._src.html import page
from scorch._src.units import format_seconds

if TYPE_CHECKING:
    from scorch._src.explain.report import Explanation

_FULL = """\
<svg width="{0}" height="{1}" viewBox="0 0 1 1" preserveAspectRatio="none" style="border:1px solid gray">\
<rect width="1" height="1" fill="currentColor" opacity="0.7"/></svg>"""
_SIDE, _LEAST_SIDE = 120, 12


def explanation_html(explanation: Explanation) -> str:
    """Return the explanation as a part of a page."""
    count = len(explanation.steps)
    steps = [_step_html(step, number, count) for number, step in enumerate(explanation.steps, 1)]
    summary = [f"<p>{page.text(line)}</p>" for line in describe_steps(count)]
    return page.page(f"<p>{page.code(explanation.text)}</p>", *summary, *steps)


def describe_steps(count: int) -> list[str]:
    """Say at the top that there are several steps."""
    return [f"{count} steps, which run one after the other: they are not fused"] if count > 1 else []


def _step_html(step: StepExplanation, number: int, count: int) -> str:
    kind = "a generated kernel" if step.kind == "kernel" else "a PyTorch operator on dense tensors"
    purpose = f", {step.purpose}" if step.purpose else ""
    title = f"<h3>Step {number} of {count} {page.faint(f'{kind}{purpose}')}</h3>"
    return f'<div class="step">{title}{draw_step(step)}{page.source("source", step.source)}</div>'


def draw_step(step: StepExplanation) -> str:
    """Draw everything about a step but its source."""
    parts = [
        draw_tensors(step.operands, [step.result]),
        draw_loops([[step]], step.threads if step.parallel else ""),
        draw_times(step.predicted, step.measured),
        draw_orders(step),
        f"<h3>Details</h3>{page.definitions(_facts(step))}",
    ]
    return "".join(parts)


def draw_tensors(operands: Iterable[TensorFacts], results: Iterable[TensorFacts]) -> str:
    """Draw the sparsity patterns of operands and results."""
    figures = [page.figure(_picture(tensor), page.text(tensor)) for tensor in operands]
    figures += [page.figure(_picture(tensor), page.text(tensor), "result") for tensor in results]
    return f'<div class="figures">{"".join(figures)}</div>'


def _picture(tensor: TensorFacts) -> str:
    """Return the sparsity pattern of a tensor, a full box for a dense one."""
    if tensor.picture:
        return tensor.picture
    if not tensor.format.is_dense:
        return page.faint(
            "sparsity pattern known after computing" if tensor.nnz is None else "too many nonzeros to draw"
        )
    rows, columns = (1, 1, *tensor.shape)[-2:]
    scale = _SIDE / max(rows, columns, 1)
    width, height = (max(_LEAST_SIDE, round(scale * size)) for size in (columns, rows))
    return _FULL.format(width, height)


def draw_loops(phases: Sequence[Sequence[StepExplanation]], threads: str) -> str:
    """Draw loops inside one another, with what each walks over; the steps of a phase share the first."""
    steps = [step for phase in phases for step in phase]
    if not all(step.loop_order for step in steps):
        return f"<h3>Computes</h3><p>{'<br>'.join(page.code(step.statement) for step in steps)}</p>"
    return f"<h3>Loop nest</h3>{''.join(_draw_phase(phase, threads) for phase in phases)}"


def _draw_phase(steps: Sequence[StepExplanation], threads: str) -> str:
    first = steps[0]
    notes = [step.inner for step in steps if len(step.loop_order) == 1]
    return _draw_loop(first, 0, [*notes, threads], "".join(_draw_inside(step, 1) for step in steps))


def _draw_inside(step: StepExplanation, depth: int) -> str:
    """Draw the loops from ``depth`` on, and what is computed inside them."""
    if depth == len(step.loop_order):
        return f"<div>{page.code(step.statement)}</div>"
    notes = [step.inner] if depth == len(step.loop_order) - 1 else []
    return _draw_loop(step, depth, notes, _draw_inside(step, depth + 1))


def _draw_loop(step: StepExplanation, depth: int, notes: Iterable[str], inside: str) -> str:
    walk = page.faint(step.walks[depth] if step.walks else "")
    note = "".join(f"<br>{page.faint(text)}" for text in notes if text)
    return f'<div class="loop"><b>for</b> {page.code(step.loop_order[depth])} {walk}{note}{inside}</div>'


def draw_times(predicted: float | None, measured: float | None) -> str:
    """Draw the predicted and the measured time."""
    times = {"predicted": predicted, "measured": measured}
    known = {name: seconds for name, seconds in times.items() if seconds is not None}
    if not known:
        return ""
    most = max(known.values()) or 1.0
    rows = [
        [
            page.text(name),
            page.bar(seconds / most, "calm" if name == "predicted" else ""),
            format_seconds(seconds),
        ]
        for name, seconds in known.items()
    ]
    return f"<h3>Time</h3>{page.table(['', '', ''], rows, {2})}"


def draw_orders(step: StepExplanation, title: str = "Loop orders") -> str:
    """Draw the cost of the loop order that was taken, and of those that were not, on a logarithmic scale."""
    if step.cost is None or not step.rejected:
        return ""
    least = max(step.cost.total, 1.0)
    most = max(order.total / least for order in step.rejected)

    def row(order: OrderCost, is_taken: bool) -> list[str]:
        ratio = max(order.total / least, 1.0)
        share = 0.12 + 0.88 * math.log(ratio) / math.log(max(most, 1.0 + 1e-9))
        reason = "chosen" if is_taken else order.reason
        bar = page.bar(share, "" if is_taken else "calm")
        return [page.code(", ".join(order.order)), bar, f"{ratio:,.1f} x", page.text(reason)]

    rows = [row(step.cost, True), *(row(order, False) for order in step.rejected)]
    head = ["order", "cost (log scale)", "", "why"]
    return f"<h3>{page.text(title)}</h3>{page.table(head, rows, {2})}"


def _facts(step: StepExplanation) -> list[tuple[str, str]]:
    facts = [("result format", "; ".join(step.reasons))]
    facts += [("converts", text) for text in step.conversions]
    if step.cost is not None:
        facts += [("threads", step.threads), ("assembly", step.assembly), ("cost", format_cost(step.cost))]
    if step.memory is not None:
        facts.append(("memory", format_memory(step.memory)))
    return [(label, page.text(text)) for label, text in facts if text]
