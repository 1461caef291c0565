"""Statements on tensors: their steps in order, and ``scorch.evaluate``."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from scorch._src.compiler.plan import Step
from scorch._src.compiler.steps import split
from scorch._src.compiler.typing import dtype_of_type, settle, widened
from scorch._src.engine.execute import Task, operand_of, run_step, single_kernel
from scorch._src.formats import Format, as_format
from scorch._src.grad_state import is_differentiable
from scorch._src.notation.cut import MOST_ACCESSES, Short, cut
from scorch._src.notation.indexing import Statement, parse
from scorch._src.notation.trees import accesses
from scorch._src.notation.verify import shapes_of
from scorch._src.statements.arrays import RUN, run_text
from scorch._src.statements.autograd import learned
from scorch._src.statements.call_cache import keep_call, repeat_call
from scorch._src.statements.modes import recorder
from scorch._src.statements.operands import as_learned, as_operand, converted, dtype_of, shape_of
from scorch._src.storage.storage import Storage
from scorch._src.tensor.flatten import spelled
from scorch._src.tensor.sparse_tensor import SparseTensor, wrap
from scorch.errors import NotationError

Tensors = dict[str, Storage | torch.Tensor]
LONG_TEXT = 4 * MOST_ACCESSES  # characters, of which a long expression has more


def evaluate(
    expression: str, /, *, format: str | Format | None = None, sparse_grad: bool = False, **tensors: Any
) -> SparseTensor | torch.Tensor:
    """The result of an index expression such as ``D[i,j] = A[i,k] * B[k,j] + C[i,j]``.

    Indices that do not stand on the left are summed; ``max(j, ...)``, ``min``, ``prod`` and ``any`` reduce
    otherwise. ``+=`` adds to a tensor passed under the name on the left and returns the sum. There are
    gradients for all tensors, as with ``einsum``.

    >>> import torch, scorch
    >>> A = scorch.from_torch(torch.eye(3), format="csr")
    >>> scorch.evaluate("y[i] = 2 * A[i,j] * x[j]", A=A, x=torch.ones(3))
    tensor([2., 2., 2.])
    """
    operands = list(tensors.values())
    if isinstance(expression, str) and len(expression) > LONG_TEXT and is_long(expression):
        return _in_parts(expression, tensors, format, sparse_grad)
    if is_dynamo_compiling():
        given = expression, list(tensors), operands, spelled(format)
        return torch.ops.scorch.evaluate(*given)  # type: ignore[no-any-return]
    record = recorder()
    if record is not None:
        options = {"format": format, "sparse_grad": sparse_grad}
        return record.record_or_run(evaluate, (expression,), {**options, **tensors})  # type: ignore[no-any-return]
    if is_differentiable(*operands):
        return _learned(expression, tensors, format, sparse_grad)
    head = (expression, format, *tensors)
    found = repeat_call(head, operands)
    if found is not None:
        return found
    statement, named, sizes = read_statement(expression, tensors)
    requested = None if format is None else as_format(format, len(statement.assign.target.indices))
    requested = kept_format(statement, named, requested)
    steps = split(statement.assign)
    result = run_statement(steps, named, sizes, requested)
    own = {name: value for name, value in tensors.items() if isinstance(value, torch.Tensor)}
    if all(dtype_of(named[name]) == value.dtype for name, value in own.items()):
        keep_call(head, operands, single_kernel(steps, named, sizes, requested), list(tensors))
    return wrap(result)


RUN.append(evaluate)


def is_long(expression: Any) -> bool:
    """Whether an expression is run as several short ones."""
    return isinstance(expression, str) and len(short_statements(expression)) > 1


@functools.lru_cache(maxsize=256)
def short_statements(expression: str) -> tuple[Short, ...]:
    """What an expression is run as: itself, or the short statements that it is cut into."""
    return cut(parse(expression))


def _in_parts(
    expression: str, tensors: Mapping[str, Any], format: str | Format | None, sparse_grad: bool
) -> SparseTensor | torch.Tensor:
    """As ``evaluate`` of a long expression, one short statement after the other."""
    for name, value in tensors.items():
        as_operand(f"tensor {name!r}", value)
    shapes_of(parse(expression), {name: tuple(value.shape) for name, value in tensors.items()})
    *shorts, last = short_statements(expression)
    given = dict(tensors)
    for short in shorts:
        target = short.statement.assign.target.tensor
        given[target] = evaluate(short.text, sparse_grad=sparse_grad, **short.named(given))
    return evaluate(last.text, format=format, sparse_grad=sparse_grad, **last.named(given))


def _learned(
    expression: str, tensors: Mapping[str, Any], format: str | Format | None, sparse_grad: bool
) -> SparseTensor | torch.Tensor:
    """As ``evaluate``, connected to the tensors."""
    statement = parse(expression) if isinstance(expression, str) else None
    names = tuple(tensors)
    operands = [as_learned(f"tensor {name!r}", value) for name, value in tensors.items()]
    used = set() if statement is None else {access.tensor for access in accesses(statement.assign.value)}
    if used != set(names):  # there is a message for that
        read_statement(expression, {n: torch.empty(o.shape) for n, o in zip(names, operands, strict=True)})
    return learned(expression, names, operands, format, run_text(expression, names, format), sparse_grad)


def read_statement(expression: str, tensors: Mapping[str, Any]) -> tuple[Statement, Tensors, dict[str, int]]:
    """The statement, its tensors checked, and the size of every index."""
    if not isinstance(expression, str):
        raise NotationError(f"the expression is a text such as 'y[i] = A[i,j] * x[j]', not {expression!r}")
    statement = parse(expression)
    named = {name: as_operand(f"tensor {name!r}", value) for name, value in tensors.items()}
    sizes = shapes_of(statement, {name: shape_of(tensor) for name, tensor in named.items()})
    types = {name: operand_of(name, tensor).element for name, tensor in named.items()}
    assign = replace(statement.assign, value=settle(statement.assign.value, types))
    for name, wanted in widened(assign.value, types).items():
        named[name] = converted(named[name], dtype_of_type(wanted))
    return replace(statement, assign=assign), named, sizes


def kept_format(statement: Statement, tensors: Tensors, requested: Format | None) -> Format | None:
    """``+=`` keeps the format of the tensor it adds to."""
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
    """Run ``steps`` one after another; the last one gives the result, which no operand shares values with."""
    given: Tensors = dict(tensors)
    for step in steps[:-1]:
        given[step.target.tensor] = run_step(Task(step, given, sizes))
    return run_step(Task(steps[-1], given, sizes, requested))
