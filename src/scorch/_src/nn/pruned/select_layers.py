"""Which layers of a model ``scorch.sparsify`` prunes, and why others stay as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from scorch._src.nn.pruned.prunable import is_sparse_layer, kind_of_layer, parts_of, walk_layers
from scorch._src.nn.sparsification import (
    BY_REQUEST,
    NOT_STORED_SPARSE,
    has_weights,
    reason_for,
    reason_of_computed,
    weight_names,
)
from scorch.errors import ArgumentError, kind_of, nearest


def names_to_skip(model: torch.nn.Module, skip: Any) -> tuple[str | type, ...]:
    """Return the names and classes in ``skip``, with the name in the model for each module."""
    names: dict[Any, str] = {module: name for name, module in model.named_modules()}
    names.update((parameter, name) for name, parameter in model.named_parameters())
    resolved: list[str | type] = []
    is_one = isinstance(skip, (str, type, torch.nn.Module, torch.Tensor)) or not isinstance(skip, Iterable)
    for each in (skip,) if is_one else skip:
        name = names.get(each, "") if isinstance(each, (torch.nn.Module, torch.Tensor)) else each
        if isinstance(name, str) and name not in names.values():
            question = nearest(name, names.values())
            hint = f"; {question}" if question else ""
            raise ArgumentError(f"skip names {name!r}, but the model has no such module or parameter{hint}")
        if not isinstance(name, (str, type)) or not name:
            raise ArgumentError(
                f"skip must name modules of the model, by name, class or module, but got {kind_of(each)}"
            )
        resolved.append(name)
    return tuple(resolved)


def select_layers(
    model: torch.nn.Module, skip: tuple[str | type, ...], nm: tuple[int, int] | None
) -> tuple[list[torch.nn.Module], dict[str, str], dict[str, torch.nn.Module]]:
    """Return the layers to prune, the names of those to leave dense with the reasons, and sparse layers."""
    selected: dict[torch.nn.Module, str] = {}
    dense: dict[str, str] = {}
    sparse: dict[str, torch.nn.Module] = {}
    for name, module, is_layer in walk_layers(model):
        reason = BY_REQUEST if _is_named(name, module, skip) else _reason_to_skip(module, nm)
        if reason is None:
            selected[module] = name
        elif is_sparse_layer(module):
            if reason != BY_REQUEST:
                sparse[name] = module
        elif is_layer:
            if any(map(has_weights, module.modules())):
                dense[name] = reason
        elif has_weights(module):
            dense.update(_reasons_by_parameter(name, module, reason, skip))
    for module in _find_sharing(model, selected):
        dense[selected.pop(module)] = "it shares its weights with another layer"
    return list(selected), dense, sparse


def _reasons_by_parameter(
    name: str, module: torch.nn.Module, reason: str, skip: tuple[str | type, ...]
) -> dict[str, str]:
    """Return why weights stay dense, by module; by parameter where a module of no known kind has some."""
    if reason != NOT_STORED_SPARSE:
        return {name: reason}
    paths = [f"{name}.{each}".lstrip(".") for each in weight_names(module)]
    return {path: BY_REQUEST if path in skip else reason for path in paths}


def _is_named(name: str, module: torch.nn.Module, skip: tuple[str | type, ...]) -> bool:
    """Whether a module, what it is in or a part of it is named in ``skip``."""
    return any(
        isinstance(module, skipped)
        if isinstance(skipped, type)
        else name == skipped
        or name.startswith(f"{skipped}.")
        or (kind_of_layer(module) is not None and skipped.startswith(f"{name}.") and bool(name))
        for skipped in skip
    )


def _reason_to_skip(module: torch.nn.Module, nm: tuple[int, int] | None) -> str | None:
    """Return why a module is left as it is, if it is."""
    is_layer = kind_of_layer(module) is not None
    computed = reason_of_computed(module.modules()) if is_layer else None
    if computed is not None:
        return computed
    if not is_layer or getattr(module, "sparse_grad", False):  # it trains on sparse inputs
        return reason_for(module)
    columns = [part.matrix.shape[1] for part in parts_of(module)]
    if nm is not None and any(size % nm[1] for size in columns if nm[1] > 0):
        return f"its rows of {max(columns)} weights cannot be divided into groups of {nm[1]}"
    return None


def _find_sharing(model: torch.nn.Module, layers: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return layers that share a weight, unless all that do are linear layers and embeddings to be pruned."""
    parameters = {layer: {id(part.parameter) for part in parts_of(layer)} for layer in layers}
    may_share = (torch.nn.Linear, torch.nn.Embedding)
    inside = {module for layer in parameters for module in layer.modules()}
    others = [module._parameters.values() for module in model.modules() if module not in inside]
    kept = {id(parameter) for of_module in others for parameter in of_module}
    tied = {key for layer, keys in parameters.items() if not isinstance(layer, may_share) for key in keys}
    counts = Counter(key for keys in parameters.values() for key in keys)
    return [
        layer
        for layer, keys in parameters.items()
        if keys & kept or any(counts[key] > 1 and key in tied for key in keys)
    ]
