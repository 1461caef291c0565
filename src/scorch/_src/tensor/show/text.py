"""A sparse tensor as text: a line of facts, and below it the entries of a small one, as torch prints them."""

from __future__ import annotations

import math
from typing import Any

import torch

from scorch._src.devices import HOST
from scorch._src.grad_state import is_transformed
from scorch._src.storage.coordinates import entries
from scorch._src.storage.storage import Storage
from scorch._src.tensor.create.check import is_freed
from scorch._src.tensor.flatten import TracedStorage
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import (
    DisableTorchFunctionSubclass,
    format_tensor,
    get_printoptions,
    len_torch_dispatch_stack,
)
from scorch._src.units import format_density

_INDENT = len("SparseTensor(")
_WRAPPER = "_WrapBackward"  # of tensor.autograd
MAX_SHOWN_ENTRIES = 20  # more are shown with torch.set_printoptions(profile="full")


def describe(tensor: SparseTensor) -> str:
    """``SparseTensor(shape=(3, 4), dtype=float32, format=csr, nnz=5, density=41.67%)``."""
    return f"SparseTensor({_facts(tensor)})"


def to_text(tensor: SparseTensor) -> str:
    """Describe a tensor, with its entries if they are few."""
    storage = tensor.storage
    if isinstance(storage, TracedStorage):
        return f"SparseTensor(shape={tuple(tensor.shape)}, format={tensor.format}, traced)"
    lines = [_facts(tensor)]
    if _are_shown(storage):
        crd, values = entries(storage)
        lines += [_format_array("indices", torch.stack(tuple(crd)))] if crd else []
        lines += [_format_array("values", values.detach())]
    separator = ",\n" + " " * _INDENT
    return f"SparseTensor({separator.join(lines)})"


def _facts(tensor: SparseTensor) -> str:
    pattern, values = tensor.storage.pattern, tensor.storage.values
    places = math.prod(pattern.shape)
    facts: dict[str, object] = {
        "shape": pattern.shape,
        "dtype": str(values.dtype).removeprefix("torch."),
        "format": pattern.format,
        "nnz": pattern.size,
    }
    if places:
        is_padded = any(pattern.shape[dim] % block for dim, block in pattern.format.blocks)
        facts["density"] = format_density(pattern.size / places) + (" with padding" if is_padded else "")
    if values.device != HOST:
        facts["device"] = values.device
    return ", ".join(f"{name}={fact}" for name, fact in (facts | autograd_facts(tensor)).items())


def autograd_facts(tensor: SparseTensor) -> dict[str, object]:
    """Return what torch prints of a tensor's place in the graph of autograd."""
    with DisableTorchFunctionSubclass():
        try:
            function = tensor.grad_fn
        except RuntimeError:  # a view that was written to where torch cannot follow
            return {"grad_fn": "Invalid"}
        if function is not None:
            return {"grad_fn": f"<{_name_of_function(function)}>"}
        return {"requires_grad": True} if tensor.requires_grad else {}


def _name_of_function(function: Any) -> str:
    """Return the name of the function that computed a tensor, or its values where it only wraps them."""
    name = type(function).__name__
    if name == _WRAPPER and function.next_functions and function.next_functions[0][0] is not None:
        name = type(function.next_functions[0][0]).__name__
    return name.lstrip("_")


def _are_shown(storage: Storage) -> bool:
    """Whether the entries are few enough and can be read: in graphs and transforms, or freed, they cannot."""
    threshold = get_printoptions()["threshold"]
    is_small = storage.pattern.size <= min(MAX_SHOWN_ENTRIES, threshold) or threshold == math.inf
    is_hidden = type(storage.values) is not torch.Tensor or is_transformed() or len_torch_dispatch_stack()
    return is_small and storage.pattern.size > 0 and not is_hidden and not is_freed(storage.values)


def _format_array(name: str, array: torch.Tensor) -> str:
    return f"{name}={format_tensor(array.to(HOST), _INDENT + len(name) + 1)}"
