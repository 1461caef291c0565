"""Derivatives of statements, which are statements: gradients sampled at patterns, and forward ones.

``compute`` runs them, so that they are connected in their turn.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from scorch._src.grad_state import is_differentiable, untracked
from scorch._src.notation.indexing import Statement
from scorch._src.statements.call_cache import repeat_recent
from scorch._src.statements.formula import (
    CSR,
    INCOMING,
    MASK,
    Call,
    Compute,
    GradientRule,
    formula_of,
    read_by,
)
from scorch._src.statements.statement import run_formula
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import placed, sparse_of
from scorch._src.tensor.create.factories import eye
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import is_legacy_batchedtensor


def forward_of(call: Call, arrays: Sequence[torch.Tensor]) -> torch.Tensor:
    """Compute the array of the result from plain tensors; its pattern is put into ``call``."""
    operands, result = call.operands, call.known
    call.operands = call.known = None
    if result is None:
        if operands is None:
            operands = []
            for array, pattern in zip(arrays, call.patterns, strict=True):
                plain = array.detach()
                if plain.is_conj() or plain.is_neg():
                    plain = plain.resolve_conj().resolve_neg()
                operands.append(plain if pattern is None else Storage(pattern, plain))
        result = run_formula(call.formula, operands)
    if isinstance(result, SparseTensor):
        result = result.storage
    if isinstance(result, Storage):
        call.pattern = result.pattern
        return result.values
    return result  # type: ignore[no-any-return]


# backward --------------------------------------------------------------------------------------------


def repeat_gradient(
    call: Call, arrays: Sequence[torch.Tensor], place: int, incoming: torch.Tensor
) -> torch.Tensor | None:
    """Compute the gradient of the array at ``place`` as the last time, where nothing is tracked.

    None where there is none, or where it takes more than one kernel (``gradient_of``).
    """
    rules = call.formula.gradients(place, False, None if call.pattern is None else call.pattern.format)
    if len(rules) != 1:
        return None
    formula, takes, gradient = rules[0]
    array, pattern = arrays[place], call.patterns[place]
    if gradient.repeated or gradient.diagonals or (pattern is not None and not pattern.shape):
        return None
    if pattern is None and (formula.format != "dense" or len(gradient.dims) < array.dim()):
        return None
    operands: list[tuple[torch.Tensor, Pattern | None]] = []
    for number in takes:
        if number == INCOMING:
            operands.append((incoming, call.pattern))
        elif number == MASK and pattern is not None:
            operands.append((pattern.mask(array.dtype), pattern))
        elif isinstance(number, int):
            operands.append((arrays[number], call.patterns[number]))
    result = repeat_recent(formula.head, operands)
    if isinstance(result, Storage):
        assert pattern is not None, "the gradient of a sparse operand"
        result = placed(result.values, result.pattern, pattern)
    return result if result is None or result.dtype is array.dtype else result.to(array.dtype)


def gradient_of(
    call: Call,
    arrays: Sequence[torch.Tensor],
    place: int,
    incoming: torch.Tensor,
    create_graph: bool,
    compute: Compute,
) -> torch.Tensor | None:
    """Compute the gradient of the array at ``place``: values on its pattern, or a dense tensor."""
    total: torch.Tensor | None = None
    form = None if call.pattern is None else call.pattern.format
    is_tracked = create_graph or is_legacy_batchedtensor(incoming)
    for rule in call.formula.gradients(place, create_graph, form):
        gradient = _run_rule(call, arrays, place, rule, incoming, compute if is_tracked else forward_of)
        total = gradient if total is None else total + gradient
    if total is None:
        return None
    return total.real if total.is_complex() and not arrays[place].is_complex() else total


def _run_rule(
    call: Call,
    arrays: Sequence[torch.Tensor],
    place: int,
    rule: GradientRule,
    incoming: torch.Tensor,
    run: Compute,
) -> torch.Tensor:
    """Compute the gradient for one use of the array at ``place``, by ``run``."""
    pattern, array, gradient = call.patterns[place], arrays[place], rule.gradient
    taken = [_take(call, arrays, place, number, incoming) for number in rule.takes]
    known = repeat_recent(rule.formula.head, taken) if run is forward_of else None
    if known is None:
        sources = [
            call.sources[n] if call.sources and type(n) is int and n >= 0 else None for n in rule.takes
        ]
        inner = Call(rule.formula, [pattern for _, pattern in taken], sources)
        value, result = run(inner, [array for array, _ in taken]), inner.pattern
    elif isinstance(known, Storage):
        value, result = known.values, known.pattern
    else:
        value, result = known, None
    if gradient.repeated:
        sizes = call.sizes(arrays)
        value = value * math.prod(sizes[index] for index in gradient.repeated)
    if pattern is not None:
        assert result is not None or not pattern.shape
        value = placed(value, result if result is not None else pattern.shape, pattern)
    elif result is not None:
        return sparse_of(result, value.to(array.dtype))
    elif len(gradient.dims) < array.dim():
        for dim in range(array.dim()):
            if dim not in gradient.dims:
                value = value.unsqueeze(dim)
        value = value.expand(array.shape)
    if value.dtype is array.dtype or (value.is_complex() and not array.is_complex()):
        return value
    return value.to(array.dtype)


def _take(
    call: Call, arrays: Sequence[torch.Tensor], place: int, taken: int | str, incoming: torch.Tensor
) -> tuple[torch.Tensor, Pattern | None]:
    """Return an array that a gradient takes, and its pattern."""
    if taken == INCOMING:
        return incoming, call.pattern
    if isinstance(taken, str):
        unit = identity(call.sizes(arrays)[taken], arrays[place])
        return unit.values, unit.pattern
    if taken == MASK:
        pattern = call.patterns[place]
        assert pattern is not None
        return pattern.mask(arrays[place].dtype), pattern
    array = arrays[taken]
    return array.conj() if array.is_complex() else array, call.patterns[taken]


def identity(size: int, like: torch.Tensor) -> Storage:
    """Build the identity matrix, for diagonals, of the dtype and on the device of ``like``."""
    with untracked():
        unit = eye(size, dtype=like.dtype, device=like.device, format=CSR)
    assert isinstance(unit, SparseTensor)
    return unit.storage


# forward ---------------------------------------------------------------------------------------------


def change_of(
    call: Call, arrays: Sequence[torch.Tensor], changes: Sequence[torch.Tensor | None], compute: Compute
) -> torch.Tensor | None:
    """Compute the tangent of the result from those of the arrays."""
    formula, sizes = call.formula, call.sizes(arrays)
    is_changed = tuple(change is not None for change in changes)
    create_graph = is_differentiable(*arrays, *itertools.compress(changes, is_changed))
    rule = formula.tangent(is_changed, tuple(sizes.items()), create_graph)
    if rule is None:
        return None
    arrays_by_name = dict(zip(formula.names, zip(arrays, call.patterns, strict=True), strict=True))
    for name, change, pattern in zip(formula.names, changes, call.patterns, strict=True):
        if change is not None:
            arrays_by_name[formula.change_name(name)] = change, pattern
    for name, index in rule.diagonals:
        unit = identity(sizes[index], arrays[0])
        arrays_by_name[name] = unit.values, unit.pattern
    format = formula.format if call.pattern is None or formula.format is not None else call.pattern.format
    inner, taken = call_on(Statement(rule.statement), read_by(rule.statement), arrays_by_name, format)
    result = compute(inner, taken)
    if call.pattern is None or inner.pattern is None:
        return result
    return placed(result, inner.pattern, call.pattern)


def call_on(
    statement: Statement,
    names: tuple[str, ...],
    arrays_by_name: Mapping[str, tuple[torch.Tensor, Pattern | None]],
    format: Any,
) -> tuple[Call, list[torch.Tensor]]:
    """Return a call of a statement on arrays by their names, with the patterns of sparse ones."""
    patterns = [arrays_by_name[name][1] for name in names]
    formats = tuple(None if pattern is None else pattern.format for pattern in patterns)
    formula = formula_of(statement, names, formats, format)
    return Call(formula, patterns), [arrays_by_name[name][0] for name in names]
