"""``.safetensors`` files: values and level arrays by name, descriptions in the metadata.

A file holds one tensor or a dictionary of them, sparse and dense, such as the state of a model. A dense
tensor has its own name, the arrays of a sparse one are ``weight.values``, ``weight.pos1``, ``weight.crd1``.
Tensors with one pattern share its arrays, in the file and when it is read. The file format has no complex
numbers of 128 bits, so complex values are kept as pairs.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from scorch._src.formats import Format
from scorch._src.io.archive import arrays_of, describe_tensor, from_arrays, parse_dtype
from scorch._src.io.safetensors_header import align
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.interop.optional import optional_module
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import FileError, OperandError, ScorchError

SINGLE_NAME = ""  # of the tensor in a file that holds no dictionary


def write_safetensors(path: Path, tensors: torch.Tensor | Mapping[str, torch.Tensor]) -> None:
    """Write one tensor, or several by name."""
    tensors_by_name = tensors if isinstance(tensors, Mapping) else {SINGLE_NAME: tensors}
    if isinstance(tensors, Mapping):
        _check_names(tensors)
    dense = {
        name for name, tensor in tensors_by_name.items() if name and not isinstance(tensor, SparseTensor)
    }
    used_keys = set(dense)
    arrays: dict[str, torch.Tensor] = {}
    descriptions = {}
    key_of_array: dict[tuple[int, int, torch.dtype], str] = {}
    for name, tensor in tensors_by_name.items():
        description = describe_tensor(tensor)
        description["arrays"] = {}
        for array_name, array in arrays_of(tensor).items():
            identity = (array.data_ptr(), array.numel(), array.dtype)
            is_shared = array_name != "values" and array.numel() > 0
            key = key_of_array.get(identity) if is_shared else None
            if key is None:
                wanted = f"{name}.{array_name}" if name else array_name
                key = name if name in dense else _free_key(wanted, used_keys)
                used_keys.add(key)
                arrays[key] = array
                if is_shared:
                    key_of_array[identity] = key
            description["arrays"][array_name] = key
        descriptions[name] = description
    _safetensors().save_file(_separate_memory(arrays), path, metadata={"scorch": json.dumps(descriptions)})


def read_safetensors(path: Path, format: str | Format | None = None) -> Any:
    """Read the tensor in ``path``, or a dictionary of tensors; sparse ones in ``format``."""
    module = _safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        arrays = module.load_file(path)
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("scorch")
    except SafetensorError as error:
        raise FileError(f"{path} is not a complete .safetensors file: {error}") from None
    if text is None:
        return arrays  # of another program: dense tensors
    try:
        descriptions = json.loads(text)
        tensors = _share_patterns(
            {name: (description, _read(description, arrays)) for name, description in descriptions.items()}
        )
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        if isinstance(error, ScorchError):
            raise
        raise FileError(f"{path}: its metadata was not written by Scorch: {error!r}") from None
    if format is not None:
        tensors = {
            name: tensor.to_format(format) if isinstance(tensor, SparseTensor) else tensor
            for name, tensor in tensors.items()
        }
    return tensors[SINGLE_NAME] if set(tensors) == {SINGLE_NAME} else tensors


def _read(description: dict[str, Any], arrays: Mapping[str, torch.Tensor]) -> SparseTensor | torch.Tensor:
    own_arrays = {array_name: arrays[key] for array_name, key in description["arrays"].items()}
    if parse_dtype(description.get("dtype")).is_complex and "values" in own_arrays:
        if own_arrays["values"].shape[-1:] != (2,) or not own_arrays["values"].is_floating_point():
            raise FileError("its complex values are not stored as pairs")
        own_arrays["values"] = torch.view_as_complex(align(own_arrays["values"], 2))
    return from_arrays(description, {array_name: align(array) for array_name, array in own_arrays.items()})


def _share_patterns(read: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Give tensors with the same index arrays one pattern."""
    tensors: dict[str, Any] = {}
    patterns: dict[Any, Pattern] = {}
    for name, (description, tensor) in read.items():
        if isinstance(tensor, SparseTensor):
            pattern = tensor.storage.pattern
            index_keys = frozenset(
                (array_name, key)
                for array_name, key in description["arrays"].items()
                if array_name != "values"
            )
            first = patterns.setdefault((pattern.format, pattern.shape, index_keys), pattern)
            tensor = SparseTensor(Storage(first, tensor.storage.values))
        tensors[name] = tensor
    return tensors


def _check_names(tensors: Mapping[str, torch.Tensor]) -> None:
    for name in tensors:
        if not isinstance(name, str):
            raise OperandError(
                f"the names of tensors in a .safetensors file must be strings, but got {name!r}"
            )
        if name in (SINGLE_NAME, "__metadata__"):
            raise OperandError(f"a tensor in a .safetensors file cannot be named {name!r}")


def _free_key(preferred: str, used_keys: set[str]) -> str:
    """Return ``preferred``, unless a tensor has that name itself."""
    return next(key for key in (preferred + "_" * n for n in itertools.count()) if key not in used_keys)


def _separate_memory(arrays: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy arrays that share memory, as the library requires."""
    addresses: set[int] = set()
    separate = {}
    for key, array in arrays.items():
        real_array = torch.view_as_real(array) if array.is_complex() else array
        address = real_array.untyped_storage().data_ptr()
        separate[key] = real_array.clone() if address in addresses else real_array.contiguous()
        addresses.add(address)
    return separate


def _safetensors() -> Any:
    return optional_module("safetensors.torch", "safetensors", " (or save as .pt)")
