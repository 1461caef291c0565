"""Gradients of a group of recorded calls that have gradients themselves.

Results of sums and softmaxes that are known are connected to what they were computed from, all other calls
are run again, and torch goes back through both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from scorch.compiler.pipeline import as_statement
from scorch.notation.nodes import Access, Op
from scorch.notation.show import show
from scorch.ops.autograd import learned
from scorch.ops.groups import run_alone, tensor_of, viewed
from scorch.ops.later import Source, Value
from scorch.ops.softmax import connected_softmax
from scorch.tensor.fused import PATTERN
from scorch.tensor.learning import sparse_of, values_at, values_of
from scorch.tensor.sparse_tensor import SparseTensor
from scorch.tensor.storage import Pattern, Storage

Made = dict[int, torch.Tensor]  # what takes the place of values and tensors, by id


def gradients_again(
    order: Sequence[Value],
    asked: Sequence[Value],
    sources: Sequence[Value | Source],
    known: Mapping[str, torch.Tensor],
    arrays: Sequence[torch.Tensor],
    incoming: Sequence[torch.Tensor],
    needed: Sequence[bool],
) -> list[torch.Tensor | None]:
    """The gradients of ``arrays``, those of ``sources``, where they are ``needed``."""
    again = torch.is_grad_enabled()
    # whoever asked for gradients may have come through __torch_function__, which is turned off inside
    with torch.enable_grad(), torch._C._EnableTorchFunction():
        given = []
        for array, need in zip(arrays, needed, strict=True):
            own = array if again and need else array.detach().requires_grad_(need)
            given.append(own.view_as(own) if again and need else own)  # to here torch goes, no further
        found = _connected(order, asked, sources, known, given)
        pairs = [(out, g) for out, g in zip(found, incoming, strict=True) if out.requires_grad]
        wanted = [array for array, need in zip(given, needed, strict=True) if need]
        gradients = torch.autograd.grad(
            [out for out, _ in pairs],
            wanted,
            [g for _, g in pairs],
            create_graph=again,
            allow_unused=True,
        )
    left = iter(gradients)
    return [next(left) if need else None for need in needed]


def _connected(
    order: Sequence[Value],
    asked: Sequence[Value],
    sources: Sequence[Value | Source],
    known: Mapping[str, torch.Tensor],
    arrays: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """The results that were asked for, connected to ``arrays``."""
    made: Made = {}
    for source, array in zip(sources, arrays, strict=True):
        tensor = tensor_of(source)
        if isinstance(tensor, SparseTensor):
            array = sparse_of(tensor.storage.pattern, array)
        made[id(tensor)] = array
        if isinstance(source, Value):
            made[id(source)] = array
    for value in order:
        found = known.get(value.recipe.access.tensor)
        if found is None or value.recipe.kind == "elementwise":
            made[id(value)] = run_alone(value, made)
        else:
            made[id(value)] = _known(value, found, made)
    return [_values(value, made[id(value)]) for value in asked]


def _values(value: Value, tensor: torch.Tensor) -> torch.Tensor:
    pattern = value.walked
    assert pattern is not None
    return _at(tensor, pattern) if value.recipe.is_sparse else tensor


def _known(value: Value, known: torch.Tensor, made: Made) -> torch.Tensor:
    """A result that need not be computed again, connected to what it was computed from."""
    recipe, pattern = value.recipe, value.walked
    assert pattern is not None
    result = SparseTensor(Storage(pattern, known)) if recipe.is_sparse else known
    parents = {name: _given(value.recorder.items[n], made) for name, n in recipe.parents.items()}
    if recipe.kind != "sum":
        (tensor,) = parents.values()
        assert isinstance(result, SparseTensor)
        return connected_softmax(_at(tensor, pattern), result, 1, recipe.kind)
    (step,) = recipe.steps
    mask = Access(PATTERN, recipe.access.indices) if recipe.is_sparse else None
    if mask is not None and not any(access.indices == mask.indices for access in step.accesses):
        step = replace(step, body=Op("mul", (mask, step.body)))
        parents[PATTERN] = SparseTensor(Storage(pattern, torch.ones_like(known)))
    names = tuple(dict.fromkeys(access.tensor for access in step.accesses))
    operands = [
        parents[name]
        if isinstance(parents[name], SparseTensor)
        else viewed(parents[name], recipe.views.get(name))
        for name in names
    ]
    form: Any = pattern.format if recipe.is_sparse else "dense"
    return learned(show(as_statement(step)), names, operands, form, lambda *_: result)


def _given(item: Value | Source, made: Made) -> torch.Tensor:
    if id(item) in made:
        return made[id(item)]
    tensor = tensor_of(item)
    return made.get(id(tensor), tensor)


def _at(tensor: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """The values of a tensor at the entries of ``pattern``, connected to it."""
    if isinstance(tensor, SparseTensor) and tensor.storage.pattern is pattern:
        return values_of(tensor)
    return values_at(tensor, pattern)
