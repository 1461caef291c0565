"""``scorch.explain(fn)``: call a whole function, and report every kernel that ran.

The function is called once to compile what it needs. Then calls that are not traced, for its total time,
alternate with calls in which kernels emit events (``events``) and a mode of torch sees the calls they are
part of. The report shows the times of one of these, the median, so that they add up to its total.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from scorch._src.backends.base import host_threads
from scorch._src.compile.api import Compiled, CompiledModule
from scorch._src.compile.argument_names import is_same_memory
from scorch._src.compiler.pipeline import as_statement
from scorch._src.compiler.plan import Step
from scorch._src.distributed.communication.collectives import Exchange
from scorch._src.distributed.cost_model.plan import Plan
from scorch._src.engine.executable import Prepared, has_no_gaps
from scorch._src.engine.execute import operand_of
from scorch._src.engine.fused_executable import FusedKernel
from scorch._src.events import Event
from scorch._src.explain.explain_fusion import (
    describe_tensors,
    explain_fused_kernel,
    explain_fusion,
    tensors_on_pattern,
)
from scorch._src.explain.explain_kernel import describe_tensor, draw_pattern, explain_kernel
from scorch._src.explain.explain_sharded import explain_exchange
from scorch._src.explain.function_report import (
    BETWEEN_PROCESSES,
    CallExplanation,
    FunctionExplanation,
    KernelExplanation,
)
from scorch._src.explain.fusion_report import GroupExplanation
from scorch._src.explain.speed import measure_speed, predict_seconds, time_calls
from scorch._src.explain.step import TensorFacts
from scorch._src.explain.trace_calls import Call, Trace, trace, unwrap
from scorch._src.notation.nodes import Access
from scorch._src.notation.show import show
from scorch._src.ops.fallback import sparse_alternative
from scorch._src.storage.storage import Storage
from scorch.errors import ArgumentError, is_integer

RUNS = 5
_BACKWARD = {"backward", "grad"}


class Explainer:
    """A function to be called with arguments, which returns a ``FunctionExplanation`` of that call."""

    def __init__(self, function: Callable[..., Any], runs: int = RUNS) -> None:
        if not is_integer(runs, 1):
            raise ArgumentError(f"runs must be a positive integer, but got {runs!r}")
        self.function = function
        self.runs = runs

    def __call__(self, *args: Any, **kwargs: Any) -> FunctionExplanation:
        """Call the function ``2 * runs + 1`` times, and once to see what ``scorch.compile`` would fuse.

        A training step is taken that many times, too. The state of the random number generator is restored.
        """
        call = functools.partial(self.function, *args, **kwargs)
        state = torch.get_rng_state()
        call()
        times: list[float] = []
        traces: list[Trace] = []
        for _ in range(self.runs):
            times += time_calls(call, 1)
            if traces:
                traces[-1].forget_tensors()
            traces.append(trace(call, with_calls=not _is_compiled_by_torch(self.function)))
        is_compiled = isinstance(self.function, Compiled | CompiledModule)
        groups = _find_fusion(self.function, args, kwargs)
        by_source = {group.source: group for group in groups} if is_compiled else {}
        together = tuple(group.calls for group in groups)
        torch.set_rng_state(state)
        timed = _select_median(traces)
        calls = tuple(_with_groups(call, by_source) for call in _explain_calls(traces[-1], timed))
        kinds = {kernel.kind for explained in calls for kernel in explained.kernels}
        return FunctionExplanation(
            _name_of(self.function),
            calls,
            statistics.median(times),
            timed.seconds,
            self.runs,
            together if is_compiled else (),
            () if is_compiled or kinds & {"fused", *BETWEEN_PROCESSES} else together,
            traces[-1].result,
        )

    def __repr__(self) -> str:
        return f"<explanation of {_name_of(self.function)}: call it with the function's arguments>"


def _name_of(function: Any) -> str:
    if isinstance(function, functools.partial):
        return _name_of(function.func)
    if isinstance(function, CompiledModule):
        return type(function._orig_mod).__name__
    name = getattr(function, "__qualname__", type(function).__name__)
    return str(name).replace("<locals>.", "").removeprefix("_VariableFunctionsClass.")


def _is_compiled_by_torch(function: Any) -> bool:
    """Whether ``torch.compile`` made it: its calls are not seen, only kernels."""
    return hasattr(function, "_torchdynamo_orig_callable") or hasattr(function, "_orig_mod")


def _find_fusion(function: Any, args: Any, kwargs: Any) -> list[GroupExplanation]:
    """Return the calls that are one kernel, or that ``scorch.compile`` would fuse."""
    is_compiled = isinstance(function, Compiled | CompiledModule)
    try:
        compiled = function if is_compiled else Compiled(function, {})
        explanation = explain_fusion(compiled, args, kwargs)
    except Exception:
        if is_compiled:
            raise
        return []  # what cannot be recorded is not reported
    return [group for group in explanation.groups if len(group.calls) > 1 and not group.reason]


def _with_groups(call: CallExplanation, groups: Mapping[str, GroupExplanation]) -> CallExplanation:
    """Show fused kernels as ``groups`` does, by their sources: with the user's names and tensors."""
    return replace(call, kernels=tuple(_with_group(kernel, groups) for kernel in call.kernels))


def _with_group(kernel: KernelExplanation, groups: Mapping[str, GroupExplanation]) -> KernelExplanation:
    group = groups.get(kernel.source)
    if group is None or kernel.fused is None:
        return kernel
    group = replace(group, predicted=kernel.predicted, measured=kernel.measured)
    return _explain_fused(kernel, group)


def _explain_fused(kernel: KernelExplanation, group: GroupExplanation) -> KernelExplanation:
    """Return ``kernel`` with what ``group`` says of it."""
    return replace(
        kernel,
        statement="; ".join(step.statement for step in group.steps),
        operands=group.operands,
        result=group.results[0] if len(group.results) == 1 else None,
        loop_order=tuple(dict.fromkeys(loop for step in group.steps for loop in step.loop_order)),
        fused=group,
    )


def _select_median(traces: list[Trace]) -> Trace:
    """Return the trace of median time among those that ran the same calls as the last."""
    same = [trace for trace in traces if _call_sequence(trace) == _call_sequence(traces[-1])]
    return sorted(same, key=lambda trace: trace.seconds)[len(same) // 2]


def _explain_calls(last: Trace, timed: Trace) -> tuple[CallExplanation, ...]:
    """Explain the last trace, which has the tensors, with the times of another."""
    calls = []
    for call, timed_call in zip(last.calls, timed.calls, strict=True):
        kernels = [
            _explain_event(event, timed_event, call)
            for event, timed_event in zip(call.events, timed_call.events, strict=True)
        ]
        if any(event.kind == "dense copy" for event in call.events):  # its own advice is enough
            kernels = [replace(k, advice=()) if k.kind == "kernel" else k for k in kernels]
        seconds = timed_call.end - timed_call.start
        calls.append(
            CallExplanation(call.name, call.where, call.line, call.is_sparse, seconds, tuple(kernels))
        )
    return tuple(calls)


def _call_sequence(trace: Trace) -> list[tuple[str, int]]:
    return [(call.name, len(call.events)) for call in trace.calls]


def _explain_event(event: Event, timed: Event, call: Call) -> KernelExplanation:
    measured, converting = timed.end - timed.start - timed.converted, timed.converted
    subject = event.subject
    tensors = list(map(unwrap, event.operands))
    if event.kind == "routine" and not any(isinstance(tensor, Storage) for tensor in tensors):
        tensors += call.operands  # the routine reads their arrays
    size = sum(map(_count_bytes, (*event.operands, event.result)))
    if isinstance(subject, Exchange | Plan):
        return explain_exchange(subject, measured)
    if isinstance(subject, Prepared):
        return _explain_prepared(subject, event, call, measured, converting)
    if isinstance(subject, FusedKernel):
        return _explain_fused_event(subject, event, measured)
    statement = show(as_statement(subject)) if isinstance(subject, Step) else str(subject)
    operands = tuple(
        describe_tensor(operand_of(_user_name(tensor, call) or "", tensor))
        for tensor in tensors
        if isinstance(tensor, Storage)
        or (isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided)
    )
    advice: tuple[str, ...] = ()
    if event.kind == "dense copy":
        instead = sparse_alternative(call.name)
        advice = (
            f"{call.name} has no sparse implementation and falls back to dense ({size:,} bytes): "
            + (instead or "call it once, or see the guide's page on PyTorch operators for alternatives"),
        )
    with_shape = tuple(operand for operand in operands if operand.shape)
    return KernelExplanation(
        event.kind, statement, with_shape, None, (), host_threads(), size, None, measured, advice=advice
    )


def _explain_fused_event(kernel: FusedKernel, event: Event, measured: float) -> KernelExplanation:
    pattern, *arrays = event.operands
    group = describe_tensors(
        explain_fused_kernel(kernel, {}),
        tensors_on_pattern(kernel, pattern, kernel.inputs, arrays),
        tensors_on_pattern(kernel, pattern, kernel.outputs, event.result),
    )
    threads = kernel.kernel.workers()
    predicted = None  # no model for a grid
    if not kernel.fused.planned[0].plan.is_grid:
        predicted = measure_speed(threads).predict(kernel.fused.work, group.bytes, is_new_pattern=False)
    group = replace(group, predicted=predicted, measured=measured)
    explained = KernelExplanation("fused", "", (), None, (), threads, group.bytes, predicted, measured)
    return _explain_fused(replace(explained, source=kernel.source), group)


def _explain_prepared(
    prepared: Prepared, event: Event, call: Call, measured: float, converting: float
) -> KernelExplanation:
    plan = prepared.planned.plan
    tensors = {name: tensor for (name, _), tensor in zip(prepared.sources, event.operands, strict=True)}
    step = explain_kernel(prepared, plan.step, tensors, prepared.sizes, call.name)
    user_names = {name: user_name for name in tensors if (user_name := _user_name(tensors[name], call))}
    memory, result_size = step.memory, _count_bytes(event.result)
    assert memory is not None
    converted = list(step.conversions)
    advice = [
        _advise_conversion(user_names.get(c.tensor), c.format, tensors.get(c.tensor), call)
        for c in prepared.planned.conversions
    ]
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and not has_no_gaps(tensor):
            origin = user_names.get(name, f"an operand of {call.name}")
            converted.append(f"{origin} is not contiguous: copied at each call")
            if name in user_names:
                advice.append(
                    f"{origin} is not contiguous and copied at each call: keep {origin}.contiguous()"
                )
    if call.name in _BACKWARD:  # gradients read internal tensors
        advice.clear()
    result = step.result
    if isinstance(event.result, Storage):
        result = replace(result, nnz=event.result.pattern.size, picture=draw_pattern(event.result))
    is_on_host = prepared.backend.target is None
    moved = memory.operands + result_size
    return KernelExplanation(
        "kernel",
        step.statement,
        tuple(_with_user_name(operand, user_names) for operand in step.operands),
        result,
        step.loop_order,
        prepared.kernel.workers(),
        memory.operands + memory.workspace + result_size,
        predict_seconds(prepared, moved) if is_on_host else step.predicted,
        measured,
        converting,
        tuple(converted),
        (*advice, *_advise_copy(plan.step, call, user_names)),
        step,
        step.source,
    )


def _advise_conversion(name: str | None, form: Any, tensor: Any, call: Call) -> str:
    """Advise how to avoid a conversion to ``form``."""
    origin = name or f"an operand of {call.name}"
    if isinstance(tensor, Storage):
        copy = f"{name}.to_format({str(form)!r})" if name else f"it as {form}"
        return f"{origin} is converted first: convert it once, before the calls, and keep {copy}"
    advice = f"{origin} is copied at each call: if it stays the same, keep"
    if name is None:
        return f"{advice} a copy in the memory order in which it is read"
    if form.dims == 2 and form.order == (1, 0):
        return f"{advice} {name}.T.contiguous().T, which is column-major"
    if form.order == tuple(range(form.dims)):
        return f"{advice} {name}.contiguous()"
    return f"{advice} it with its dimensions in the order {form.order} in memory"


def _advise_copy(step: Step, call: Call, user_names: dict[str, str]) -> tuple[str, ...]:
    """Advise on a kernel that only converts a tensor."""
    body = step.body
    if not isinstance(body, Access) or step.reduced or sorted(body.indices) != sorted(step.target.indices):
        return ()
    name = user_names.get(body.tensor, "a tensor")
    return (f"{call.name} converts {name}: if {name} stays the same, convert it once, outside the function",)


def _with_user_name(operand: TensorFacts, user_names: dict[str, str]) -> TensorFacts:
    user_name = user_names.get(operand.name, operand.name)
    return operand if user_name == operand.name else replace(operand, name=f"{operand.name} ({user_name})")


def _user_name(tensor: Any, call: Call) -> str | None:
    """Return the user's name of a tensor, or of its transpose; None if it has none."""
    for name, value in call.names.items():
        if isinstance(tensor, Storage) and isinstance(value, Storage):
            if value.pattern is tensor.pattern:
                return name
            if any(relative is tensor.pattern for relative in value.pattern.relatives.values()):
                return f"{name}.T" if value.pattern.shape[::-1] == tensor.pattern.shape else None
        elif isinstance(tensor, torch.Tensor) and isinstance(value, torch.Tensor):
            if is_same_memory(tensor, value):
                return name
            if value.dim() == 2 and is_same_memory(tensor, value.T):
                return f"{name}.T"
    return None


def _count_bytes(value: Any) -> int:
    value = unwrap(value)
    if isinstance(value, Storage):
        return sum(array.nbytes for array in value.tensors)
    if isinstance(value, torch.Tensor):
        return value.nbytes if value.layout == torch.strided else 0
    if isinstance(value, list | tuple):
        return sum(map(_count_bytes, value))
    return 0
