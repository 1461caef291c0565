"""Derivatives of statements, which are statements: gradients sampled at patterns, and forward ones.

``computed`` runs them, so that they are connected in their turn.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from scorch._src.formats import Format
from scorch._src.grad_state import is_differentiable, untracked
from scorch._src.notation.differentiate import Gradient, Tangent, gradients, tangent
from scorch._src.notation.indexing import parse
from scorch._src.notation.nodes import Assign
from scorch._src.notation.show import show
from scorch._src.notation.trees import accesses
from scorch._src.statements.arrays import Call, Compute, Piece, fresh, index_names, run_text, tensors_of
from scorch._src.tensor.autograd import placed, sparse_of
from scorch._src.tensor.create.factories import eye
from scorch._src.tensor.sparse_tensor import SparseTensor

# backward --------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def rules(
    text: str, tensor: str, incoming: str, mask: str | None, again: bool = False
) -> tuple[tuple[Gradient, str], ...]:
    """The gradients for each use of ``tensor``, with their texts; ``again``: they are differentiated too."""
    found = gradients(parse(text).assign, tensor, incoming, mask, again)
    return tuple((rule, show(rule.statement)) for rule in found)


@functools.lru_cache(maxsize=4096)
def read_by_gradients(text: str, names: tuple[str, ...], needed: tuple[bool, ...]) -> frozenset[str]:
    """The operands whose elements the gradients of the needed ones depend on."""
    seed = fresh("G", (text.partition("[")[0].partition("=")[0].strip(), *names, *index_names(text)))
    found: set[str] = set()
    for name in (name for name, is_needed in zip(names, needed, strict=True) if is_needed):
        for again in (False, True):
            for _, rule in rules(text, name, seed, None, again):
                found.update(tensors_of(rule))
    return frozenset(found.intersection(names))


def seeded(
    call: Call, arrays: Sequence[torch.Tensor], place: int, incoming: torch.Tensor
) -> tuple[str, str | None, dict[str, Piece]]:
    """What gradients are statements of: the names of the incoming one and of a mask, and all tensors."""
    pattern = call.patterns[place]
    taken = (call.text.partition("[")[0].partition("=")[0].strip(), *call.names)
    seed = fresh("G", (*taken, *index_names(call.text)))
    mask = None if pattern is None else fresh("P", (*taken, seed, *index_names(call.text)))
    pieces = {seed: Piece(incoming, call.pattern)}
    sources = call.sources or (None,) * len(arrays)
    for name, own, other, source in zip(call.names, call.patterns, arrays, sources, strict=True):
        pieces[name] = Piece(other.conj() if other.is_complex() else other, own, source)
    if mask is not None and pattern is not None:
        pieces[mask] = Piece(pattern.mask(arrays[place].dtype), pattern)
    return seed, mask, pieces


def gradient_of(
    call: Call, arrays: Sequence[torch.Tensor], place: int, incoming: torch.Tensor, computed: Compute
) -> Any:
    """The gradient of the array at ``place``: values on its pattern, or a dense tensor."""
    array = arrays[place]
    seed, mask, pieces = seeded(call, arrays, place, incoming)
    total: torch.Tensor | None = None
    again = is_differentiable(incoming, *arrays)
    for rule, text in rules(call.text, call.names[place], seed, mask, again):
        found = _run_rule(call, arrays, place, rule, text, pieces, computed)
        total = found if total is None else total + found
    if total is None:
        return None
    return total.real if total.is_complex() and not array.is_complex() else total


def _run_rule(
    call: Call,
    arrays: Sequence[torch.Tensor],
    place: int,
    rule: Gradient,
    text: str,
    pieces: Mapping[str, Piece],
    computed: Compute,
) -> torch.Tensor:
    pattern, array = call.patterns[place], arrays[place]
    shape = call.shape(arrays, place)
    given = {**pieces, **diagonals(rule, call, arrays, array.dtype)}
    names = tensors_of(text)
    used = [given[name] for name in names]
    asked: Any = "dense" if pattern is None else pattern.format
    if pattern is None and call.sparse_grad and len(rule.dims) == len(shape):
        asked = _touched(rule.statement, dict(zip(names, used, strict=True)))
    found = computed(text, names, used, asked, run_text(text, names, asked))
    value = found.array
    if rule.repeated:
        sizes = call.sizes(arrays)
        value = value * math.prod(sizes[index] for index in rule.repeated)
    if pattern is not None:
        assert found.pattern is not None or not pattern.shape
        value = placed(value, found.pattern if found.pattern is not None else shape, pattern)
    elif found.pattern is not None:
        return sparse_of(found.pattern, value.to(array.dtype))
    elif len(rule.dims) < len(shape):
        missing = [dim for dim in range(len(shape)) if dim not in rule.dims]
        for dim in missing:
            value = value.unsqueeze(dim)
        value = value.expand(shape)
    return value if value.is_complex() and not array.is_complex() else value.to(array.dtype)


def _touched(statement: Assign, pieces: Mapping[str, Piece]) -> Any:
    """The format of a gradient that stores those rows, or columns, only that a sparse tensor meets."""
    met: set[str] = set()
    for access in accesses(statement.value):
        pattern = pieces[access.tensor].pattern
        if pattern is not None:
            levels = zip(pattern.format.order, pattern.format.levels, strict=True)
            met |= {access.indices[dim] for dim, level in levels if not level.is_full}
    indices = statement.target.indices
    first = next((dim for dim, index in enumerate(indices) if index in met), None)
    if first is None:
        return "dense"
    others = [dim for dim in range(len(indices)) if dim != first]
    return Format("s" + "d" * len(others), order=(first, *others))


def diagonals(
    rule: Gradient | Tangent, call: Call, arrays: Sequence[torch.Tensor], dtype: torch.dtype
) -> dict[str, Piece]:
    """The identity matrices that a derivative needs."""
    if not rule.diagonals:
        return {}
    sizes = call.sizes(arrays)
    return {name: identity(sizes[index], dtype) for name, index in rule.diagonals}


def identity(size: int, dtype: torch.dtype) -> Piece:
    """The identity matrix, for diagonals."""
    with untracked():
        made = eye(size, dtype=dtype, format="csr")
    assert isinstance(made, SparseTensor)
    return Piece(made.storage.values, made.storage.pattern)


# forward ---------------------------------------------------------------------------------------------


def change_of(
    call: Call, arrays: Sequence[torch.Tensor], changes: Sequence[Any], computed: Compute
) -> torch.Tensor | None:
    """How the result changes with the arrays."""
    pieces = {
        name: Piece(array, pattern)
        for name, array, pattern in zip(call.names, arrays, call.patterns, strict=True)
    }
    named: dict[str, str] = {}
    taken = {*call.names, *index_names(call.text)}
    for name, change, pattern in zip(call.names, changes, call.patterns, strict=True):
        if change is not None:
            named[name] = fresh(f"{name}_t", tuple(taken))
            taken.add(named[name])
            pieces[named[name]] = Piece(change, pattern)
    again = is_differentiable(*arrays, *(change for change in changes if change is not None))
    rule = tangent(call.assign, named, call.sizes(arrays), again)
    if rule is None:
        return None
    pieces.update(diagonals(rule, call, arrays, arrays[0].dtype))
    text = show(rule.statement)
    names = tensors_of(text)
    asked: Any = call.format if call.pattern is None or call.format is not None else call.pattern.format
    found = computed(text, names, [pieces[name] for name in names], asked, run_text(text, names, asked))
    if call.pattern is None or found.pattern is None:
        return found.array
    return placed(found.array, found.pattern, call.pattern)
