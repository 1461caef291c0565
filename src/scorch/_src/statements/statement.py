"""Run statements on plain tensors: read them, check their operands, and run their steps in order."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from scorch._src.compiler.plan import Step
from scorch._src.compiler.steps import split
from scorch._src.compiler.typing import dtype_of_type, settle, widened
from scorch._src.dataclass import replace
from scorch._src.devices import HOST
from scorch._src.engine.execute import Task, operand_of, run_step, single_kernel
from scorch._src.engine.one_device import on_one_device
from scorch._src.formats import Format, as_format
from scorch._src.notation.cut import MAX_ACCESSES, Short, cut
from scorch._src.notation.indexing import Statement, parse
from scorch._src.notation.nodes import Access, Assign, Op, Reduce
from scorch._src.notation.show import show
from scorch._src.notation.trees import accesses, free_indices
from scorch._src.notation.verify import shapes_of
from scorch._src.statements.call_cache import keep_call, repeat_call
from scorch._src.statements.formula import Formula, fresh, read_by
from scorch._src.statements.operands import as_operand, converted, dtype_of, shape_of
from scorch._src.storage.storage import Storage

Tensors = dict[str, Storage | torch.Tensor]
LONG_EXPRESSION_CHARS = 4 * MAX_ACCESSES  # characters, of which a long expression has more


def run_formula(formula: Formula, operands: Sequence[Any]) -> Storage | torch.Tensor:
    """Run a formula on plain tensors, or storages: nothing is connected to them."""
    result = repeat_call(formula.head, operands, as_storage=True)
    if result is None:
        tensors = dict(zip(formula.names, operands, strict=True))
        result = run_new(formula.head, formula.statement, tensors, formula.format)
    return result  # type: ignore[no-any-return]


def run_new(
    head: tuple[Any, ...], statement: Statement, tensors: Mapping[str, Any], format: Any
) -> Storage | torch.Tensor:
    """Plan and run a statement that is not cached, and cache it by ``head``."""
    shorts = cut(statement) if len(accesses(statement.assign.value)) > MAX_ACCESSES else ()
    if len(shorts) > 1:  # what has no part with an index of its own is run as it is
        return _run_parts(shorts, tensors, format)
    statement, named, sizes = check_operands(statement, tensors)
    requested = None if format is None else as_format(format, len(statement.assign.target.indices))
    requested = accumulation_format(statement, named, requested)
    steps = split(statement.assign, statement.sampled_at)
    result = run_statement(steps, named, sizes, requested)
    own = {name: value for name, value in tensors.items() if isinstance(value, (torch.Tensor, Storage))}
    if all(dtype_of(named[name]) == dtype_of(value) for name, value in own.items()):
        prepared = single_kernel(steps, named, sizes, requested)
        keep_call(head, list(tensors.values()), prepared, list(tensors))
    return result


def _run_parts(parts: Sequence[Short], tensors: Mapping[str, Any], format: Any) -> Storage | torch.Tensor:
    """Run a long statement, one short one after the other."""
    *shorts, last = parts
    tensors_by_name = dict(tensors)
    for short in shorts:
        tensors_by_name[short.target] = run_text(short.text, short.named(tensors_by_name), None)
    return run_text(last.text, last.named(tensors_by_name), format)


def run_text(text: str, tensors: Mapping[str, Any], format: Any) -> Storage | torch.Tensor:
    """Run a text on plain tensors, or storages."""
    head = (text, format, *tensors)
    result = repeat_call(head, list(tensors.values()), as_storage=True)
    return run_new(head, parse(text), tensors, format) if result is None else result


def is_long(expression: Any) -> bool:
    """Check whether an expression is run as several short ones."""
    return isinstance(expression, str) and len(short_statements(expression)) > 1


@functools.lru_cache(maxsize=256)
def short_statements(expression: str) -> tuple[Short, ...]:
    """Return what an expression is run as: itself, or the short statements that it is cut into."""
    return cut(parse(expression))


class Part(NamedTuple):
    """A statement to evaluate into a tensor called ``target``, and the tensors that it reads."""

    text: str
    target: str
    reads: tuple[str, ...]

    def named(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors that it reads, by name."""
        return {name: tensors[name] for name in self.reads}


@functools.lru_cache(maxsize=256)
def parts_of(expression: str, is_dense: bool) -> tuple[Part, ...]:
    """Return the statements that an expression is differentiated as, in order.

    The reductions inside it come first and, where all operands are dense, what a function is applied to.
    """
    statement = parse(expression)
    if statement.accumulate:  # which reads its target
        return (_part(statement.assign),)
    steps = split(statement.assign)
    assigns = [
        Assign(step.target, Reduce(step.reduction, step.reduced, step.body) if step.reduced else step.body)
        for step in steps
    ]
    value = assigns[-1].value
    if len(steps) == 1 and is_dense and isinstance(value, Op) and len(value.args) == 1:
        target, (inner,) = statement.assign.target, value.args
        if len(read_by(statement.assign)) > 1 and target.indices:
            whole = Access(fresh("T1", (target.tensor, *read_by(statement.assign))), free_indices(inner))
            assigns = [Assign(whole, inner), Assign(target, Op(value.name, (whole,)))]
    return tuple(map(_part, assigns))


def _part(assign: Assign) -> Part:
    return Part(show(Statement(assign)), assign.target.tensor, read_by(assign))


def read_statement(expression: str, tensors: Mapping[str, Any]) -> tuple[Statement, Tensors, dict[str, int]]:
    """Parse a statement, check its tensors, and infer the size of every index."""
    return check_operands(parse(expression), tensors)


def check_operands(
    statement: Statement, tensors: Mapping[str, Any]
) -> tuple[Statement, Tensors, dict[str, int]]:
    """Return the statement for the dtypes of its tensors, those checked, and the size of every index."""
    named = {name: as_operand(f"tensor {name!r}", value) for name, value in tensors.items()}
    sizes = shapes_of(statement, {name: shape_of(tensor) for name, tensor in named.items()})
    types = {name: operand_of(name, tensor).element for name, tensor in named.items()}
    assign = replace(statement.assign, value=settle(statement.assign.value, types))
    for name, wanted in widened(assign.value, types).items():
        named[name] = converted(named[name], dtype_of_type(wanted))
    return replace(statement, assign=assign), named, sizes


def accumulation_format(statement: Statement, tensors: Tensors, requested: Format | None) -> Format | None:
    """Return the format of a result: that of the tensor that ``+=`` adds to, if none is requested."""
    if requested is not None or not statement.accumulate:
        return requested
    target = tensors[statement.assign.target.tensor]
    return target.pattern.format if isinstance(target, Storage) else None


def run_statement(
    steps: Sequence[Step],
    tensors: Mapping[str, Storage | torch.Tensor],
    sizes: Mapping[str, int],
    requested: Format | None,
) -> Storage | torch.Tensor:
    """Run ``steps`` one after another; the result of the last one shares no values with operands."""
    tensors_by_name: Tensors = on_one_device(dict(tensors))
    device = next((tensor.device for tensor in tensors_by_name.values()), HOST)
    for step in steps[:-1]:  # one that reads nothing has its result on the host
        tensors_by_name[step.target.tensor] = run_step(Task(step, tensors_by_name, sizes)).to(device)
    return run_step(Task(steps[-1], tensors_by_name, sizes, requested)).to(device)
