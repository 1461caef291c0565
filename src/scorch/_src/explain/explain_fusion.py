"""Explain what ``scorch.compile`` fused: the calls, and the kernel that computes them, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from scorch._src.backends.base import host_threads
from scorch._src.compile.api import Compiled, CompiledModule, FusedCalls
from scorch._src.compile.argument_names import complete_names, rename
from scorch._src.compile.layer_plan import LayerPlan
from scorch._src.compiler.describe import (
    describe_assembly,
    describe_conversion,
    describe_inner,
    describe_threads,
)
from scorch._src.compiler.fuse.join_loops import written
from scorch._src.compiler.pipeline import Planned
from scorch._src.compiler.typing import dtype_of_type
from scorch._src.engine.execute import operand_of
from scorch._src.engine.fused_executable import PATTERN, FusedKernel
from scorch._src.explain.explain_kernel import (
    describe_tensor,
    describe_walk,
    draw_pattern,
    dtype_name,
    order_cost,
    shape_of_result,
)
from scorch._src.explain.fusion_report import FusionExplanation, GroupExplanation
from scorch._src.explain.report import MAX_REJECTED_ORDERS
from scorch._src.explain.step import OrderCost, StepExplanation, TensorFacts
from scorch._src.explain.trace_calls import unwrap
from scorch._src.notation.show import show
from scorch._src.storage.storage import Pattern, Storage
from scorch.settings import current

LAYER_VALUES = "values"  # of the weight of a layer, which has them already
LAYER_OUTPUT = "y"  # in the statements of layers


def explain_fusion(compiled: Compiled | CompiledModule, args: Any, kwargs: Any) -> FusionExplanation:
    """Call a compiled function and explain how its sparse calls were computed."""
    found = compiled.find_fusion(*args, **kwargs)
    groups = tuple(_explain_group(group, found.names) for group in found.groups)
    return FusionExplanation(
        groups,
        found.others,
        found.dense,
        found.failed,
        found.unfused,
        found.dense_calls,
        found.is_unprofitable,
    )


def _explain_group(group: FusedCalls, names: Mapping[str, str]) -> GroupExplanation:
    plan = group.plan
    if isinstance(plan, LayerPlan):
        reason = "a result inside is needed later" if plan.is_split else plan.reason
        explained = GroupExplanation(plan.calls, plan.statements, "", reason)
        group = replace(group, operands={n: t for n, t in group.operands.items() if n != LAYER_VALUES})
        if len(group.results) == 1:
            explained = replace(explained, names=dict.fromkeys(group.results, LAYER_OUTPUT))
    elif plan.kernel is None:
        explained = GroupExplanation(plan.calls, "", "", plan.reason)
    else:
        gradients = "" if plan.backward is None else plan.backward.explain()
        names = complete_names(plan.kernel.fused.header, names)
        explained = explain_fused_kernel(plan.kernel.fused, names)
        explained = replace(explained, calls=plan.calls, gradients=rename(gradients, names))
    return describe_tensors(explained, group.operands, group.results)


def explain_fused_kernel(kernel: FusedKernel, names: Mapping[str, str]) -> GroupExplanation:
    """Explain the loops of a fused kernel, with tensors named by ``names``."""
    fused = kernel.fused
    stored = [name for name in kernel.inputs if name in fused.group.stored]
    walked = names.get(stored[0], stored[0]) if stored else "the sparsity pattern"
    shown = {**names, PATTERN: walked}
    threads = rename(_describe_threads(kernel), shown)
    sizes = dict(fused.group.sizes)
    return GroupExplanation(
        (),
        rename(kernel.header, names),
        kernel.source,
        "",
        names=dict(names),
        steps=tuple(_explain_step(each, sizes, shown, threads) for each in fused.planned),
        phase=fused.phase,
        threads=threads,
    )


def _describe_threads(kernel: FusedKernel) -> str:
    """Say how threads share the rows."""
    first = kernel.fused.planned[0].plan
    if first.is_grid:
        return kernel.kernel.how or f"one grid over {first.order[0]}"
    return describe_threads(first, kernel.kernel.workers(), current().threads or host_threads())


def describe_tensors(
    group: GroupExplanation, operands: Mapping[str, torch.Tensor], results: Mapping[str, torch.Tensor]
) -> GroupExplanation:
    """Add the tensors of a group, given by their names in steps."""
    read, given = (
        {group.names.get(name, name): unwrap(tensor) for name, tensor in tensors.items()}
        for tensors in (operands, results)
    )
    size = sum(
        sum(array.nbytes for array in tensor.tensors) if isinstance(tensor, Storage) else tensor.nbytes
        for tensor in (read | given).values()
    )
    return replace(
        group,
        operands=tuple(_describe_tensor(name, tensor) for name, tensor in read.items()),
        results=tuple(_describe_tensor(name, tensor) for name, tensor in given.items()),
        bytes=size,
    )


def tensors_on_pattern(
    kernel: FusedKernel, pattern: Pattern | None, names: tuple[str, ...], arrays: Any
) -> dict[str, Any]:
    """Return what a kernel read or returned: those with values at the entries of its pattern are sparse."""
    stored = kernel.fused.group.stored
    return {
        name: Storage(pattern, array) if pattern is not None and name in stored else array
        for name, array in zip(names, arrays, strict=True)
    }


def _describe_tensor(name: str, tensor: Storage | torch.Tensor) -> TensorFacts:
    return replace(describe_tensor(operand_of(name, tensor)), picture=draw_pattern(tensor))


def _explain_step(
    planned: Planned, sizes: Mapping[str, int], names: Mapping[str, str], threads: str
) -> StepExplanation:
    """Explain a step of a fused kernel, which was planned as if it were alone."""
    plan, choice = planned.plan, planned.choice
    nnz = None if plan.pattern is None else plan.operand(plan.pattern.tensor).nnz

    def renamed(text: str) -> str:
        return rename(text, names)

    def renamed_order(cost: OrderCost) -> OrderCost:
        return replace(cost, order=tuple(map(renamed, cost.order)), reason=renamed(cost.reason))

    shape, dtype = shape_of_result(plan.step, sizes), dtype_name(dtype_of_type(plan.element))
    return StepExplanation(
        statement=renamed(show(written(plan))),
        kind="kernel",
        purpose="a step of a fused kernel",
        operands=(),
        result=TensorFacts(renamed(plan.step.target.tensor), plan.result, shape, nnz, dtype),
        reasons=planned.inferred.reasons,
        conversions=tuple(renamed(describe_conversion(made)) for made in planned.conversions),
        loop_order=tuple(map(renamed, plan.order)),
        walks=tuple(renamed(describe_walk(plan, loop, sizes)) for loop in plan.order),
        cost=renamed_order(order_cost(choice.chosen, choice.chosen, plan)),
        paper=renamed_order(order_cost(choice.paper, choice.chosen, plan)),
        rejected=tuple(
            renamed_order(order_cost(other, choice.chosen, plan))
            for other in choice.rejected[:MAX_REJECTED_ORDERS]
        ),
        assembly=describe_assembly(plan),
        inner="" if plan.is_grid else renamed(describe_inner(plan)),
        parallel=plan.parallel,
        threads=threads,
    )
