"""Explain one prepared kernel: formats, loops, conversions, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from scorch._src.backends.base import Call, Description, host_threads
from scorch._src.compiler.bounds import Footprint
from scorch._src.compiler.describe import (
    describe_assembly,
    describe_conversion,
    describe_dearer,
    describe_inner,
    describe_threads,
    workspace_loops,
)
from scorch._src.compiler.pipeline import as_statement
from scorch._src.compiler.plan import Operand, Plan, Step
from scorch._src.compiler.schedule.cost import Cost
from scorch._src.compiler.typing import dtype_of_type
from scorch._src.devices import HOST
from scorch._src.engine.executable import Prepared, arrays_of, has_no_gaps
from scorch._src.engine.execute import operand_of
from scorch._src.engine.footprint import footprint
from scorch._src.explain.report import MAX_REJECTED_ORDERS
from scorch._src.explain.step import OrderCost, StepExplanation, TensorFacts
from scorch._src.notation.show import show
from scorch._src.storage.storage import Storage
from scorch._src.tensor.show.spy import to_svg
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.settings import current

MAX_DRAWN_ENTRIES = 1 << 21
PICTURE_CELLS, PICTURE_SIDE = 60, 120

Tensors = Mapping[str, Storage | torch.Tensor]


def explain_kernel(
    prepared: Prepared, step: Step, tensors: Tensors, sizes: Mapping[str, int], purpose: str
) -> StepExplanation:
    """Explain what a prepared kernel does with ``tensors``."""
    planned = prepared.planned
    plan, choice = planned.plan, planned.choice
    form = plan.result
    nnz = None if plan.pattern is None else plan.operand(plan.pattern.tensor).nnz
    max_threads = current().threads or host_threads()
    memory = footprint(prepared, tensors)
    said = prepared.kernel.describe(_call(prepared, tensors, memory)) or Description(
        describe_inner(plan), describe_threads(plan, prepared.kernel.workers(), max_threads)
    )
    is_shared = plan.pattern is not None and plan.pattern.indices == step.target.indices
    picture = draw_pattern(tensors.get(plan.pattern.tensor)) if plan.pattern and is_shared else ""
    return StepExplanation(
        statement=show(as_statement(step)),
        kind="kernel",
        purpose=purpose,
        operands=tuple(
            replace(describe_tensor(operand_of(name, tensor)), picture=draw_pattern(tensor))
            for name, tensor in tensors.items()
        ),
        result=TensorFacts(
            step.target.tensor, form, shape_of_result(step, sizes), nnz, dtype_name(prepared.dtype), picture
        ),
        reasons=planned.inferred.reasons,
        conversions=tuple(map(describe_conversion, planned.conversions)),
        loop_order=plan.order,
        walks=tuple(describe_walk(plan, loop, sizes) for loop in plan.order),
        cost=order_cost(choice.chosen, choice.chosen, plan),
        paper=order_cost(choice.paper, choice.chosen, plan),
        rejected=tuple(order_cost(c, choice.chosen, plan) for c in choice.rejected[:MAX_REJECTED_ORDERS]),
        assembly=describe_assembly(plan),
        workspace=plan.workspace and f"{plan.workspace} over {workspace_loops(plan)}",
        inner=said.inner,
        parallel=plan.parallel,
        memory=memory,
        threads=said.threads,
        predicted=said.seconds,
        source=prepared.kernel.source,
    )


def _call(prepared: Prepared, tensors: Tensors, memory: Footprint) -> Call:
    """Return what a backend is told of a call of ``prepared`` on ``tensors``."""
    sources = [tensors[name] for name, _ in prepared.sources]
    is_read_as_is = not prepared.converts and all(
        isinstance(tensor, Storage) or has_no_gaps(tensor) for tensor in sources
    )
    arrays = arrays_of(sources) if is_read_as_is else None
    device = sources[0].device if sources else HOST
    return Call(device, memory.operands + memory.result, memory.values, memory.exact, arrays)


def describe_walk(plan: Plan, loop: str, sizes: Mapping[str, int]) -> str:
    """Say what a loop goes over, in the formats that the kernel reads."""
    sparse = []
    for access in plan.step.accesses:
        levels = plan.operand(access.tensor).format.levels
        for use in plan.uses(access):
            if use.loop == loop and not levels[use.level].is_full:
                sparse.append(f"the {levels[use.level].name} level of {access.tensor}")
                break
    if sparse:
        return f"over {' and '.join(dict.fromkeys(sparse))}"
    return f"from 0 to {_count_turns(plan, loop, sizes) - 1:,}"


def _count_turns(plan: Plan, loop: str, sizes: Mapping[str, int]) -> int:
    """Return how many coordinates a loop has: those of an index, its blocks, or the places in a block."""
    index, part = plan.splits.origin(loop)
    block = plan.splits.block(index) or 1
    if part == "inner":
        return block
    return -(-sizes[index] // block) if part == "outer" else sizes[index]


def draw_pattern(tensor: Storage | torch.Tensor | None) -> str:
    """Draw the sparsity pattern of a tensor, small; empty for dense tensors and those with many entries."""
    if not isinstance(tensor, Storage) or tensor.pattern.size > MAX_DRAWN_ENTRIES:
        return ""
    return to_svg(SparseTensor(tensor), PICTURE_CELLS, PICTURE_SIDE)


def describe_tensor(operand: Operand) -> TensorFacts:
    dtype = dtype_name(dtype_of_type(operand.element))
    return TensorFacts(operand.name, operand.format, operand.shape, operand.nnz, dtype)


def shape_of_result(step: Step, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sizes[index] for index in step.target.indices)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def order_cost(cost: Cost, chosen: Cost, plan: Plan) -> OrderCost:
    reason = "" if cost.order == chosen.order else describe_dearer(cost, chosen, plan)
    return OrderCost(cost.order, cost.total, cost.work, cost.assembly, cost.transposition, reason)
