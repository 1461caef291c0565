"""``scorch.evaluate``: index expressions over tensors in any mix of formats."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch.compiler import is_dynamo_compiling

from scorch._src.backends.repeated_calls import NO_RULE
from scorch._src.devices import HOST
from scorch._src.formats import Format
from scorch._src.grad_state import is_differentiable, refuse_jit
from scorch._src.notation.cut import Short
from scorch._src.notation.indexing import parse
from scorch._src.notation.trees import accesses
from scorch._src.notation.verify import shapes_of
from scorch._src.statements.autocast import autocast_dtype, casts_of, without_autocast
from scorch._src.statements.autograd import differentiable, repeat_differentiable
from scorch._src.statements.call_cache import quickest, repeat_call
from scorch._src.statements.modes import active
from scorch._src.statements.operands import as_differentiable, as_operand, dtype_of, shape_of
from scorch._src.statements.statement import (
    LONG_EXPRESSION_CHARS,
    Part,
    is_long,
    parts_of,
    run_new,
    short_statements,
)
from scorch._src.tensor.flatten import call_captured, is_captured, spelled
from scorch._src.tensor.sparse_tensor import SparseTensor, wrap
from scorch._src.torch_internals import is_any_autocast_enabled
from scorch.errors import NotationError

# Dtypes in which a tensor of its own rounds a reduction as the kernel of the whole expression does.
SPLIT = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def evaluate(
    expression: str,
    /,
    *unnamed: NoReturn,
    format: str | Format | None = None,
    sparse_grad: bool = False,
    **tensors: Any,
) -> SparseTensor | torch.Tensor:
    """Evaluate an expression in index notation, such as ``D[i,j] = A[i,k] * B[k,j] + C[i,j]``.

    Indices that do not occur on the left-hand side are summed over, separately in each term: a sum encloses
    the smallest subexpression that contains all uses of the index. Where another sum is meant, write it: in
    ``exp(P[i,k] * Q[j,k]) / sum(j, exp(P[i,k] * Q[j,k]))`` the sum over ``k`` would enclose the quotient, so
    write ``exp(sum(k, P[i,k] * Q[j,k]))`` both times. ``max(j, ...)``, ``min``, ``prod`` and
    ``any`` are other reductions. ``+=`` adds to the tensor passed under the name on the left and returns the
    sum. The whole expression becomes one fused kernel where that is faster. ``torch.autocast`` casts the
    tensors of contractions.

    Args:
        expression: the expression; its functions are listed in the guide.
        format: the format of the result; chosen by the compiler without it.
        sparse_grad: whether gradients of dense tensors store only the rows that sparse tensors touch.
        tensors: the tensors by name, sparse or dense.

    Returns:
        A ``SparseTensor``, or a dense tensor where the result is dense.

    Raises:
        NotationError: the expression is malformed, or a tensor is missing or unused.
        ShapeError: an index has different sizes in different tensors.

    Example:

        >>> import torch, scorch
        >>> A = scorch.from_torch(torch.eye(3), format="csr")
        >>> scorch.evaluate("y[i] = 2 * A[i,j] * x[j]", A=A, x=torch.ones(3))
        tensor([2., 2., 2.])
    """
    if unnamed:
        raise unnamed_tensors(expression, unnamed)
    if type(expression) is str and len(expression) > LONG_EXPRESSION_CHARS and is_long(expression):
        return _in_parts(expression, tensors, format, sparse_grad)
    head = (expression, format, *tensors)
    if active.recorder is None and not is_dynamo_compiling():
        repeated = quickest.repeat(head, NO_RULE, *tensors.values())
        if repeated is not None:
            return repeated  # type: ignore[no-any-return]
    refuse_jit("evaluate")
    if is_captured(tensors.values()):
        arguments = expression, list(tensors), list(tensors.values()), spelled(format)
        return call_captured(torch.ops.scorch.evaluate, *arguments)  # type: ignore[no-any-return]
    record = active.recorder
    if record is not None:
        options = {"format": format, "sparse_grad": sparse_grad}
        return record.record_or_run(evaluate, (expression,), {**options, **tensors})  # type: ignore[no-any-return]
    if is_any_autocast_enabled():
        cast_tensors, dtype = autocast_tensors(expression, tensors)
        if dtype is not None:
            with without_autocast(_device_of(tensors)):
                found = evaluate(expression, format=format, sparse_grad=sparse_grad, **cast_tensors)
            return found if found.dtype == dtype else found.to(dtype)
    operands = list(tensors.values())
    if is_differentiable(*operands):
        return _differentiable(head, tensors, sparse_grad)
    known: SparseTensor | torch.Tensor | None = repeat_call(head, operands)
    if known is not None:
        return known
    return wrap(run_new(head, parse(expression), tensors, format))


def _shown(
    expression: str, /, *, format: str | Format | None = None, sparse_grad: bool = False, **tensors: Any
) -> SparseTensor | torch.Tensor:
    """How ``evaluate`` is called: with tensors that have names."""
    raise AssertionError("only its signature is used")


vars(evaluate)["__signature__"] = inspect.signature(_shown)


def unnamed_tensors(expression: str, unnamed: Sequence[Any]) -> NotationError:
    """Return the error for tensors by position, which says how to pass them by name."""
    names = list(dict.fromkeys(access.tensor for access in accesses(parse(expression).assign.value)))
    if len(unnamed) == 1 and isinstance(unnamed[0], Mapping):
        return NotationError("pass the tensors by name: ** turns the dictionary into names, as in **tensors")
    call = ", ".join(f"{name}={name}" for name in names)
    return NotationError(f"pass the tensors of {expression!r} by name, not by position: {call}")


def _in_parts(
    expression: str, tensors: Mapping[str, Any], format: str | Format | None, sparse_grad: bool
) -> SparseTensor | torch.Tensor:
    """Evaluate a long expression, one short statement after the other."""
    for name, value in tensors.items():
        as_operand(f"tensor {name!r}", value)
    shapes_of(parse(expression), {name: tuple(value.shape) for name, value in tensors.items()})
    return _in_order(short_statements(expression), dict(tensors), format, sparse_grad)


def autocast_tensors(
    expression: str, tensors: Mapping[str, Any]
) -> tuple[Mapping[str, Any], torch.dtype | None]:
    """Return the tensors, of which autocast casts those of contractions, and the dtype of the result.

    Without autocast, the dtype is None.
    """
    low = autocast_dtype(_device_of(tensors)) if is_any_autocast_enabled() else None
    if low is None:
        return tensors, None
    named = {name: as_operand(f"tensor {name!r}", value) for name, value in tensors.items()}
    statement = parse(expression)
    sizes = shapes_of(statement, {name: shape_of(value) for name, value in named.items()})
    dtypes = {name: dtype_of(value) for name, value in named.items()}
    casts = casts_of(statement.assign.value, dtypes, sizes, low)
    own = {name for name in casts.names if isinstance(tensors[name], torch.Tensor)}
    return {name: value.to(low) if name in own else value for name, value in tensors.items()}, casts.dtype


def _device_of(tensors: Mapping[str, Any]) -> torch.device:
    """Return the device of the first tensor with dimensions."""
    values = [value for value in tensors.values() if isinstance(value, torch.Tensor) and value.dim()]
    return values[0].device if values else HOST


def _differentiable(
    head: tuple[Any, ...], tensors: Mapping[str, Any], sparse_grad: bool
) -> SparseTensor | torch.Tensor:
    """Evaluate an expression and connect the result to the tensors."""
    expression, format, *_ = head
    known = repeat_differentiable((*head, sparse_grad), list(tensors.values()))
    if known is not None:
        return known
    statement = parse(expression)
    names = tuple(tensors)
    operands = [as_differentiable(f"tensor {name!r}", value) for name, value in tensors.items()]
    used = {access.tensor for access in accesses(statement.assign.value)}
    if used != set(names):  # raises the error
        shapes_of(statement, {name: tuple(value.shape) for name, value in zip(names, operands, strict=True)})
    parts = parts_of(expression, not any(isinstance(operand, SparseTensor) for operand in operands))
    if len(parts) > 1 and len({operand.dtype for operand in operands}) == 1 and operands[0].dtype in SPLIT:
        return _in_order(parts, dict(zip(names, operands, strict=True)), format, sparse_grad)
    is_own = all(mine is original for mine, original in zip(operands, tensors.values(), strict=True))
    cache_head = (*head, sparse_grad) if is_own else None
    return differentiable(statement, names, operands, format, sparse_grad, head=cache_head)


def _in_order(
    parts: Sequence[Part | Short], tensors: dict[str, Any], format: str | Format | None, sparse_grad: bool
) -> SparseTensor | torch.Tensor:
    """Evaluate the parts of an expression, the last of which is the result, into ``tensors``.

    Each part has its own node of autograd, so that the backward pass differentiates it once.
    """
    *first, last = parts
    for part in first:
        tensors[part.target] = evaluate(part.text, sparse_grad=sparse_grad, **part.named(tensors))
    return evaluate(last.text, format=format, sparse_grad=sparse_grad, **last.named(tensors))
