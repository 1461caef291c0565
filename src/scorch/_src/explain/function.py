"""``scorch.explain(fn)``: a whole function is called, and every kernel that ran is told.

The function is called once to compile what it needs, then several times without being watched, for the time
of the whole, and several times more while kernels tell when they run (``events``) and a mode of torch
sees the calls they are part of. What is shown is the last of these calls, with median times.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from scorch._src.backends.base import host_threads
from scorch._src.compile.api import Compiled, CompiledModule
from scorch._src.compiler.pipeline import as_statement
from scorch._src.compiler.plan import Step
from scorch._src.engine.executable import Prepared, has_no_gaps
from scorch._src.engine.execute import operand_of
from scorch._src.engine.fused_executable import FusedKernel
from scorch._src.events import Event
from scorch._src.explain.function_report import (
    CallExplanation,
    FunctionExplanation,
    KernelExplanation,
    groups_of,
)
from scorch._src.explain.kernel import explain_kernel, facts
from scorch._src.explain.report import TensorFacts
from scorch._src.explain.speed import predicted, speed
from scorch._src.explain.trace import Call, Trace, stored, traced
from scorch._src.notation.nodes import Access
from scorch._src.notation.show import show
from scorch._src.storage.storage import Storage
from scorch.errors import ArgumentError

RUNS = 5
_BACKWARD = {"backward", "grad"}


class Explainer:
    """A function to be called with arguments, which gives a ``FunctionExplanation`` of that call."""

    def __init__(self, function: Callable[..., Any], runs: int = RUNS) -> None:
        if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
            raise ArgumentError(f"runs is how often the function is measured, from 1 on, not {runs!r}")
        self.function = function
        self.runs = runs

    def __call__(self, *args: Any, **kwargs: Any) -> FunctionExplanation:
        """Call the function ``2 * runs + 1`` times, and once to see what ``scorch.compile`` would join.

        So a training step is taken as often; what is drawn at random afterwards does not change.
        """
        call = functools.partial(self.function, *args, **kwargs)
        state = torch.get_rng_state()
        call()
        times = []
        for _ in range(self.runs):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        traces: list[Trace] = []
        for _ in range(self.runs):
            if traces:
                traces[-1].forget_tensors()
            traces.append(traced(call, with_calls=not _is_compiled_by_torch(self.function)))
        joined, joinable = _fusion(self.function, args, kwargs)
        torch.set_rng_state(state)
        calls = _explained(traces)
        is_joined = any(kernel.kind == "fused" for found in calls for kernel in found.kernels)
        return FunctionExplanation(
            _name_of(self.function),
            calls,
            statistics.median(times),
            statistics.median(trace.seconds for trace in traces),
            self.runs,
            joined,
            () if is_joined else joinable,
            traces[-1].result,
        )

    def __repr__(self) -> str:
        return f"<call it with the arguments of {_name_of(self.function)} to see what it does>"


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


def _fusion(
    function: Any, args: Any, kwargs: Any
) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]:
    """The calls that are one kernel, and those that ``scorch.compile`` would make one."""
    is_compiled = isinstance(function, Compiled | CompiledModule)
    try:
        compiled = function if is_compiled else Compiled(function, {})
        found = compiled.explain(*args, **kwargs)
    except Exception:
        if is_compiled:
            raise
        return (), ()  # what cannot be recorded is not worth a word
    groups = groups_of([group.calls for group in found.groups if not group.reason])
    return (groups, ()) if is_compiled else ((), groups)


# in words --------------------------------------------------------------------------------------------


def _explained(traces: list[Trace]) -> tuple[CallExplanation, ...]:
    """The last trace, with medians of all that ran the same calls."""
    last = traces[-1]
    alike = [trace for trace in traces if _shape(trace) == _shape(last)]
    found = []
    for number, call in enumerate(last.calls):
        spent = statistics.median(trace.calls[number].end - trace.calls[number].start for trace in alike)
        kernels = []
        for place, event in enumerate(call.events):
            same = [trace.calls[number].events[place] for trace in alike]
            kernels.append(_kernel(event, same, call))
        if any(event.kind == "dense copy" for event in call.events):  # what is said of it is enough
            kernels = [replace(k, advice=()) if k.kind == "kernel" else k for k in kernels]
        found.append(CallExplanation(call.name, call.where, call.line, call.is_sparse, spent, tuple(kernels)))
    return tuple(found)


def _shape(trace: Trace) -> list[tuple[str, int]]:
    return [(call.name, len(call.events)) for call in trace.calls]


def _kernel(event: Event, same: list[Event], call: Call) -> KernelExplanation:
    measured = statistics.median(each.end - each.start - each.converted for each in same)
    converting = statistics.median(each.converted for each in same)
    size = sum(map(_bytes, (*event.operands, event.result)))
    subject = event.subject
    if isinstance(subject, Prepared):
        return _generated(subject, event, call, measured, converting)
    if isinstance(subject, FusedKernel):
        header, loops = subject.header, subject.fused.group.walked
        threads = subject.kernel.workers()
        statement = "; ".join(line.strip() for line in header.splitlines() if "=" in line)
        expected = speed(threads).predict(subject.fused.work, size, is_new_pattern=False)
        return KernelExplanation(
            "fused", statement, (), None, loops, threads, size, expected, measured, source=subject.source
        )
    statement = show(as_statement(subject)) if isinstance(subject, Step) else str(subject)
    operands = tuple(
        facts(operand_of(_user_name(tensor, call) or "", tensor))
        for tensor in map(stored, event.operands)
        if isinstance(tensor, Storage)
        or (isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided)
    )
    advice: tuple[str, ...] = ()
    if event.kind == "dense copy":
        advice = (
            f"{call.name} has no form for sparse tensors and works on dense copies ({size:,} bytes): "
            "call it once, or see the guide's page on torch's functions for what is sparse",
        )
    named = tuple(operand for operand in operands if operand.shape)
    return KernelExplanation(
        event.kind, statement, named, None, (), host_threads(), size, None, measured, 0.0, (), advice
    )


def _generated(
    prepared: Prepared, event: Event, call: Call, measured: float, converting: float
) -> KernelExplanation:
    plan = prepared.planned.plan
    names = [name for name, _ in prepared.sources]
    tensors = dict(zip(names, event.operands, strict=True))
    sizes = prepared.sizes
    step = explain_kernel(prepared, plan.step, tensors, sizes, call.name)
    known = {name: found for name in names if (found := _user_name(tensors[name], call))}
    memory = step.memory
    assert memory is not None
    size = memory.operands + memory.workspace + _bytes(event.result)
    converted, advice = [], []
    for text, conversion in zip(step.conversions, prepared.planned.conversions, strict=True):
        converted.append(text)
        named = known.get(conversion.tensor)
        advice.append(_advice(named, conversion.format, tensors.get(conversion.tensor), call))
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and not has_no_gaps(tensor):
            origin = known.get(name, f"an operand of {call.name}")
            converted.append(f"{origin} has gaps in memory, as slices have: copied at each call")
            if name in known:
                advice.append(f"{origin} has gaps and is copied at each call: keep {origin}.contiguous()")
    if call.name in _BACKWARD:  # what a gradient reads is made inside
        advice.clear()
    copied = _copies(plan.step, call, known)
    result = step.result
    return KernelExplanation(
        "kernel",
        step.statement,
        tuple(_renamed(operand, known) for operand in step.operands),
        _counted(result, event.result),
        step.loop_order,
        prepared.kernel.workers(),
        size,
        predicted(prepared, memory.operands + _bytes(event.result)),
        measured,
        converting,
        tuple(converted),
        (*(text for text in advice if text), *copied),
        step,
        step.source,
    )


def _advice(name: str | None, form: Any, tensor: Any, call: Call) -> str:
    """How to spare a conversion to ``form``."""
    of = name or f"an operand of {call.name}"
    if isinstance(tensor, Storage):
        kept = f"{name}.to_format({str(form)!r})" if name else f"it as {form}"
        return f"{of} is stored otherwise first: keep {kept} from before the calls, and it is read as it is"
    copied = f"{of} is copied at each call: if it stays the same, keep"
    if name is None:
        return f"{copied} a copy that lies in memory as it is read"
    if form.dims == 2 and form.order == (1, 0):
        return f"{copied} {name}.T.contiguous().T, which lies by columns"
    if form.order == tuple(range(form.dims)):
        return f"{copied} {name}.contiguous()"
    return f"{copied} it with its dimensions in the order {form.order} in memory"


def _copies(step: Step, call: Call, known: dict[str, str]) -> tuple[str, ...]:
    """What to say of a kernel that only stores a tensor otherwise."""
    body = step.body
    if not isinstance(body, Access) or step.reduced or sorted(body.indices) != sorted(step.target.indices):
        return ()
    name = known.get(body.tensor, "a tensor")
    return (
        f"{call.name} stores {name} otherwise: if {name} stays the same, do it once, outside of the function",
    )


def _renamed(operand: TensorFacts, known: dict[str, str]) -> TensorFacts:
    mine = known.get(operand.name)
    if mine is None or mine == operand.name:
        return operand
    return TensorFacts(f"{operand.name} ({mine})", operand.format, operand.shape, operand.nnz, operand.dtype)


def _counted(result: TensorFacts, found: Any) -> TensorFacts:
    """The result with the number of entries that it came to have."""
    if not isinstance(found, Storage):
        return result
    return TensorFacts(result.name, result.format, result.shape, found.pattern.size, result.dtype)


def _user_name(tensor: Any, call: Call) -> str | None:
    """What the user calls a tensor, or its transpose; None if it has no name there."""
    for name, value in call.names.items():
        if isinstance(tensor, Storage) and isinstance(value, Storage):
            if value.pattern is tensor.pattern:
                return name
            if any(relative is tensor.pattern for relative in value.pattern.relatives.values()):
                return f"{name}.T" if value.pattern.shape[::-1] == tensor.pattern.shape else None
        elif isinstance(tensor, torch.Tensor) and isinstance(value, torch.Tensor):
            if _is_same_memory(tensor, value):
                return name
            if value.dim() == 2 and _is_same_memory(tensor, value.T):
                return f"{name}.T"
    return None


def _is_same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a is b or a.shape != b.shape or a.layout != torch.strided or b.layout != torch.strided:
        return a is b
    try:
        return bool(a.is_set_to(b))
    except RuntimeError:  # a shell of torch.func or of a compiler
        return False


def _bytes(value: Any) -> int:
    value = stored(value)
    if isinstance(value, Storage):
        return sum(array.nbytes for array in value.tensors)
    if isinstance(value, torch.Tensor):
        return value.nbytes if value.layout == torch.strided else 0
    if isinstance(value, list | tuple):
        return sum(map(_bytes, value))
    return 0
