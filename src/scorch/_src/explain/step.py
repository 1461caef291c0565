"""What an explanation says of one step: its tensors, the cost of orders of loops, and how it runs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import field

from scorch._src.compiler.bounds import HUGE_PAGE, Footprint
from scorch._src.compiler.describe import describe_format
from scorch._src.compiler.schedule.cost import INSERT_DENSE, VECTOR
from scorch._src.dataclass import dataclass
from scorch._src.explain.render import HIDDEN
from scorch._src.formats import Format
from scorch._src.units import format_bytes


@dataclass(frozen=True)
class TensorFacts:
    """A tensor of a step; ``nnz`` is None for a result whose entries are known only after computing.

    ``picture``
        its sparsity pattern as SVG, empty where it is not drawn
    """

    name: str
    format: Format
    shape: tuple[int, ...]
    nnz: int | None
    dtype: str
    picture: str = field(default="", repr=False, compare=False, metadata=HIDDEN)

    def __str__(self) -> str:
        sizes = " x ".join(map(str, self.shape)) or "a scalar"
        stored = ""
        if self.nnz is not None and not self.format.is_dense:
            elements = math.prod(self.shape)
            stored = f", {self.nnz:,} stored" + (f" ({100 * self.nnz / elements:.3g}%)" if elements else "")
        name = f"{self.name}: " if self.name else ""
        return f"{name}{describe_format(self.format)}, {sizes}{stored}, {self.dtype}"


@dataclass(frozen=True)
class OrderCost:
    """An order of loops and its expected cost, in the time of a scalar multiply-add.

    ``total = work + assembly + transposition``; ``reason``: why it costs more than the order taken.
    """

    order: tuple[str, ...]
    total: float
    work: float
    assembly: float
    transposition: float
    reason: str


@dataclass(frozen=True)
class StepExplanation:
    """One generated kernel (``kind`` is ``kernel``), or one call of torch where all operands are dense.

    ``statement``
        what is computed, in index notation
    ``purpose``
        why the step is there, where it is not all of what was requested
    ``operands``
        name, format, shape, nnz and dtype of what it reads, as passed
    ``result``
        the same of its result; ``reasons`` say why its format
    ``conversions``
        sentences: which operands are converted first, and why
    ``loop_order``
        outermost first, and its ``cost``; ``paper``: Algorithm 1's order; ``rejected``: the best
    ``walks``
        what each loop goes over: the stored coordinates of sparse tensors, or a whole range
    ``assembly``
        how the result is built; ``workspace``: what gathers entries that come out of order
    ``inner``
        how the innermost loop runs: vectors, partial sums, what stands outside it
    ``parallel``
        whether threads share the outermost loop; ``threads`` says how, or why not
    ``memory``
        bytes of operands, result and workspace, which together are the most a kernel needs
    ``predicted``
        seconds, where the device that runs the kernel says how fast it is, or with ``measure=True``
    ``measured``
        seconds, the median of several calls, with ``measure=True``
    ``source``
        the C source of the kernel
    """

    statement: str
    kind: str
    purpose: str
    operands: tuple[TensorFacts, ...]
    result: TensorFacts
    reasons: tuple[str, ...]
    conversions: tuple[str, ...] = ()
    loop_order: tuple[str, ...] = ()
    cost: OrderCost | None = None
    paper: OrderCost | None = None
    rejected: tuple[OrderCost, ...] = ()
    walks: tuple[str, ...] = field(default=(), metadata=HIDDEN)
    assembly: str = "by PyTorch"
    workspace: str | None = None
    inner: str = "as PyTorch decides"
    parallel: bool = False
    threads: str = "as PyTorch decides"
    memory: Footprint | None = None
    predicted: float | None = None
    measured: float | None = None
    source: str = ""


def format_cost(cost: OrderCost) -> str:
    """Return the cost of an order of loops with its terms."""
    costs = {"loops": cost.work, "assembly": cost.assembly, "transposing": cost.transposition}
    terms = [f"{name} {format_number(value)}" for name, value in costs.items() if value]
    split = f": {' + '.join(terms)}" if len(terms) > 1 else ""
    counts = f"a vectorized one counts {VECTOR:g}, an entry put into a workspace {INSERT_DENSE:g}"
    return f"about as long as {format_number(cost.total)} scalar multiply-adds{split} (estimate; {counts})"


def add_costs(steps: Iterable[StepExplanation]) -> OrderCost:
    """Return the cost of steps that run together."""
    costs = [step.cost for step in steps if step.cost is not None]
    work, assembly, transposition = (
        sum(getattr(cost, term) for cost in costs) for term in ("work", "assembly", "transposition")
    )
    return OrderCost((), work + assembly + transposition, work, assembly, transposition, "")


def format_memory(memory: Footprint) -> str:
    """Return the bytes of operands, result and workspace."""
    workspaces = []
    if memory.each_thread:
        per_thread = f" for each of {memory.threads} threads" if memory.threads > 1 else ""
        workspaces.append(format_bytes(memory.each_thread) + per_thread)
    if memory.once:
        workspaces.append(format_bytes(memory.once) + (" shared" if workspaces else ""))
    if memory.copies:
        workspaces.append(f"{format_bytes(memory.copies)} for converted operands")
    bound = "" if memory.exact else "up to "
    sizes = f"operands {format_bytes(memory.operands)}, result {bound}{format_bytes(memory.result)}"
    reuse = "; its memory is reused once it is freed" if memory.result >= HUGE_PAGE else ""
    return f"{sizes}, workspace {' and '.join(workspaces) or 'none'}{reuse}"


def format_number(value: float) -> str:
    """Return a count, in scientific notation where it is large."""
    return f"{value:,.0f}" if value < 1e9 else f"{value:.2e}"
