"""``scorch.einsum``: torch's einsum over tensors in any mix of formats."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from scorch._src.backends.base import is_served
from scorch._src.backends.repeated_calls import NO_RULE
from scorch._src.compiler.steps import split
from scorch._src.compiler.typing import dtype_of_type, type_of_dtype, widened
from scorch._src.devices import HOST
from scorch._src.engine.execute import single_kernel
from scorch._src.formats import Format, as_format
from scorch._src.grad_state import is_differentiable, refuse_jit
from scorch._src.name_hints import keywords_of, unknown_keyword
from scorch._src.notation.indexing import Statement
from scorch._src.notation.parse_einsum import Einsum, parse_einsum, read_indices, sublists_to_equation
from scorch._src.statements.autocast import autocast_dtype, casts_of, is_autocast
from scorch._src.statements.autograd import differentiable, repeat_differentiable
from scorch._src.statements.call_cache import keep_call, quickest, repeat_call
from scorch._src.statements.contraction import MAX_OPERANDS, Contraction, contractions
from scorch._src.statements.modes import active
from scorch._src.statements.operands import (
    as_differentiable,
    as_operand,
    converted,
    dtype_of,
    shape_of,
    squeezed,
)
from scorch._src.statements.statement import run_statement
from scorch._src.tensor.flatten import call_captured, is_captured, spelled
from scorch._src.tensor.sparse_tensor import SparseTensor, wrap
from scorch._src.torch_internals import is_any_autocast_enabled


def einsum(
    *args: Any, format: str | Format | None = None, sparse_grad: bool = False, **unknown: Any
) -> SparseTensor | torch.Tensor:
    """Contract sparse and dense operands by an einsum equation.

    The equations are those of ``torch.einsum``, ellipses, repeated indices and lists of subscripts included.
    The compiler chooses the result's format and the loop order and generates one kernel, which is cached.

    ``torch.autocast`` casts operands as it does in ``torch.einsum``: those of contractions.

    Gradients of sparse operands have the sparsity pattern of the operand; those of dense operands are dense.

    Args:
        equation: an equation such as ``"ij,jk->ik"``.
        operands: one operand per term: dense tensors and sparse ones, in any format.
        format: the format of the result; chosen by the compiler without it.
        sparse_grad: whether gradients of dense operands store only the rows that sparse operands touch.

    Returns:
        A ``SparseTensor``, or a dense tensor where the result is dense.

    Raises:
        NotationError: the equation is malformed or does not match the number of operands.
        ShapeError: an index has different sizes in different operands.
        DensityError: a dense result would exceed the dense budget.

    Example:

        >>> import torch, scorch
        >>> A = scorch.from_torch(torch.eye(3), format="csr")
        >>> C = scorch.einsum("ij,jk->ik", A, A)
        >>> C.format, C.nnz
        (Format('csr'), 3)
    """
    if unknown:  # checked here, because a decorator would take time in every call
        keyword, value = next(iter(unknown.items()))
        raise unknown_keyword("einsum", keyword, keywords_of(_shown), value)
    count = len(args)
    if count > 1 and type(args[1]) is SparseTensor and not is_dynamo_compiling() and active.recorder is None:
        repeated = quickest.repeat((args[0], format), NO_RULE, *args[1:])
        if repeated is not None:
            return repeated  # type: ignore[no-any-return]
    refuse_jit("einsum")
    if count > MAX_OPERANDS or (count == 2 and type(args[1]) in (list, tuple)):
        equation, operands = _arguments(args)
        if len(operands) > MAX_OPERANDS:
            return _in_parts(equation, operands, format, sparse_grad)
    if is_captured(args):
        equation, operands = _arguments(args)
        arguments = equation, list(operands), spelled(format), sparse_grad
        return call_captured(torch.ops.scorch.einsum, *arguments)  # type: ignore[no-any-return]
    record = active.recorder
    if record is not None:
        return record.record_or_run(einsum, args, {"format": format, "sparse_grad": sparse_grad})  # type: ignore[no-any-return]
    if is_any_autocast_enabled() and is_autocast():
        equation, operands = _arguments(args)
        args = equation, *autocast_operands(equation, operands)
    head = (args[0], format) if args and isinstance(args[0], str) else None
    operands = args[1:] if head else args
    if is_differentiable(*operands):
        return differentiable_einsum(args, format, sparse_grad)
    if head is not None:
        known: SparseTensor | torch.Tensor | None = repeat_call(head, operands)
        if known is not None:
            return known
    equation, operands = _arguments(args)
    if format is None and _are_dense(operands) and not all(is_served(value.device) for value in operands):
        return torch.einsum(equation, *operands)
    tensors = [as_operand(f"operand {number}", operand) for number, operand in enumerate(operands)]
    parsed, names = _parsed(equation, tuple(map(shape_of, tensors)))
    dtype = _common_dtype(parsed, operands)
    if dtype is not None:
        tensors = [converted(tensor, dtype) for tensor in tensors]
    squeezes = [operand.squeeze for operand in parsed.operands]
    named = dict(zip(names, map(squeezed, tensors, squeezes), strict=True))
    requested = None if format is None else as_format(format, len(parsed.statement.target.indices))
    steps = split(parsed.statement)
    result = run_statement(steps, named, parsed.sizes, requested)
    if head is not None and dtype is None and not any(squeezes):
        keep_call(head, operands, single_kernel(steps, named, parsed.sizes, requested), names)
    return wrap(result)


def _shown(
    equation: Any, *operands: Any, format: str | Format | None = None, sparse_grad: bool = False
) -> SparseTensor | torch.Tensor:
    """The usual way to call ``einsum``, whose arguments may be lists of subscripts too."""
    raise AssertionError("only its signature is used")


vars(einsum)["__signature__"] = inspect.signature(_shown)


def autocast_operands(equation: str, operands: Sequence[Any]) -> Sequence[Any]:
    """Return the operands, of which those are cast that autocast casts in ``torch.einsum``."""
    values = [as_operand(f"operand {number}", operand) for number, operand in enumerate(operands)]
    device = next((value.device for value in values if shape_of(value)), HOST)
    low = autocast_dtype(device)
    if low is None:
        return operands
    parsed, names = _parsed(equation, tuple(map(shape_of, values)))
    dtypes = dict(zip(names, map(dtype_of, values), strict=True))
    casts = casts_of(parsed.statement.value, dtypes, parsed.sizes, low)
    named = zip(names, operands, strict=True)
    return [
        value.to(low) if name in casts.names and isinstance(value, torch.Tensor) else value
        for name, value in named
    ]


def _in_parts(
    equation: str, operands: Sequence[Any], format: str | Format | None, sparse_grad: bool
) -> SparseTensor | torch.Tensor:
    """Compute an einsum of many operands a few at a time, all in the dtype of the result."""
    if format is None and _are_dense(operands):
        return torch.einsum(equation, *operands)
    for number, operand in enumerate(operands):
        as_operand(f"operand {number}", operand)
    dtype = functools.reduce(torch.promote_types, [operand.dtype for operand in operands])
    factors = [operand if operand.dtype == dtype else operand.to(dtype) for operand in operands]
    *parts, last = planned_contractions(equation, tuple(tuple(operand.shape) for operand in operands))
    for part in parts:
        factors.append(einsum(part.equation, *(factors[n] for n in part.takes), sparse_grad=sparse_grad))
        for number in part.takes:
            factors[number] = None  # which nothing else takes
    return einsum(last.equation, *(factors[n] for n in last.takes), format=format, sparse_grad=sparse_grad)


@functools.lru_cache(maxsize=256)
def planned_contractions(equation: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[Contraction, ...]:
    """Plan the einsums of a few operands each that one of many is computed as."""
    return tuple(contractions(*read_indices(equation, shapes)))


def differentiable_einsum(
    args: tuple[Any, ...], format: str | Format | None, sparse_grad: bool = False
) -> SparseTensor | torch.Tensor:
    """Compute ``einsum`` and connect the result to the operands."""
    equation, operands = _arguments(args)
    if format is None and _are_dense(operands):
        return torch.einsum(equation, *operands)
    head = (equation, format, sparse_grad)
    known = repeat_differentiable(head, operands)
    if known is not None:
        return known
    originals = operands
    operands = tuple(as_differentiable(f"operand {n}", value) for n, value in enumerate(originals))
    parsed, names = _parsed(equation, tuple(tuple(operand.shape) for operand in operands))
    dtype = _common_dtype(parsed, operands)
    if dtype is not None:
        operands = tuple(operand.to(dtype) for operand in operands)
    operands = tuple(
        value.squeeze(operand.squeeze) if operand.squeeze else value
        for value, operand in zip(operands, parsed.operands, strict=True)
    )
    is_own = all(mine is value for mine, value in zip(operands, originals, strict=True))
    statement = Statement(parsed.statement)
    return differentiable(statement, names, operands, format, sparse_grad, head=head if is_own else None)


def _common_dtype(parsed: Einsum, operands: Sequence[Any]) -> torch.dtype | None:
    """Return the dtype to convert operands to; None where the kernel converts them, or there is only one."""
    dtypes = [operand.dtype for operand in operands if isinstance(operand, torch.Tensor)]
    if len(dtypes) < len(operands) or len(set(dtypes)) < 2:  # a number has no dtype of its own
        return None
    names = (operand.access.tensor for operand in parsed.operands)
    types = dict(zip(names, map(type_of_dtype, dtypes), strict=True))
    promoted = widened(parsed.statement.value, types, all_tensors=True)
    return dtype_of_type(next(iter(promoted.values()))) if promoted else None


@functools.lru_cache(maxsize=1024)
def _parsed(equation: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[Einsum, tuple[str, ...]]:
    """Parse an equation; also return the names of the operands in its statement."""
    parsed = parse_einsum(equation, list(shapes))
    return parsed, tuple(operand.access.tensor for operand in parsed.operands)


def _are_dense(operands: Sequence[Any]) -> bool:
    """Check whether all operands are torch's own dense tensors, or parameters."""
    return all(type(value) in (torch.Tensor, torch.nn.Parameter) for value in operands)


def _arguments(args: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Return the equation and operands, also from the form with lists of subscripts."""
    if args and isinstance(args[0], str):
        operands = args[1:]
        if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
            operands = tuple(operands[0])  # torch takes them as one list too
        return args[0], operands
    return sublists_to_equation(args)
