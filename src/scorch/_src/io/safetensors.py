"""``.safetensors`` files: values and level arrays by name, the facts of each tensor in the metadata.

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
from types import ModuleType
from typing import Any

import torch

from scorch._src.formats import Format
from scorch._src.io.archive import arrays_of, as_dtype, facts_of, from_arrays
from scorch._src.io.safetensors_header import aligned
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import FileError, OperandError, ScorchError, UnsupportedError

ONE = ""  # the name of the tensor in a file that holds one and no dictionary


def write_safetensors(path: Path, tensors: torch.Tensor | Mapping[str, torch.Tensor]) -> None:
    """Write one tensor, or several by name."""
    named = tensors if isinstance(tensors, Mapping) else {ONE: tensors}
    if isinstance(tensors, Mapping):
        _check_names(tensors)
    dense = {name for name, tensor in named.items() if name and not isinstance(tensor, SparseTensor)}
    taken = set(dense)
    kept: dict[str, torch.Tensor] = {}
    facts = {}
    seen: dict[tuple[int, int, torch.dtype], str] = {}
    for name, tensor in named.items():
        found = facts_of(tensor)
        found["arrays"] = {}
        for part, array in arrays_of(tensor).items():
            same = (array.data_ptr(), array.numel(), array.dtype)
            if part != "values" and array.numel() and same in seen:
                key = seen[same]
            else:
                key = name if name in dense else _free_key(f"{name}.{part}" if name else part, taken)
                taken.add(key)
                kept[key] = array
                if part != "values":
                    seen[same] = key
            found["arrays"][part] = key
        facts[name] = found
    _safetensors().save_file(_apart(kept), path, metadata={"scorch": json.dumps(facts)})


def read_safetensors(path: Path, format: str | Format | None = None) -> Any:
    """The tensor in ``path``, or a dictionary if it was written from one; ``format`` is for sparse ones."""
    module = _safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        arrays = module.load_file(path)
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("scorch")
    except SafetensorError as error:
        raise FileError(f"{path} is no whole .safetensors file: {error}") from None
    if text is None:
        return arrays  # written by somebody else: dense tensors
    try:
        facts = json.loads(text)
        found = _shared({name: (own, _read(own, arrays)) for name, own in facts.items()})
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        if isinstance(error, ScorchError):
            raise
        raise FileError(f"{path}: its metadata are not as Scorch writes them: {error!r}") from None
    if format is not None:
        found = {
            name: tensor.to_format(format) if isinstance(tensor, SparseTensor) else tensor
            for name, tensor in found.items()
        }
    return found[ONE] if set(found) == {ONE} else found


def _read(facts: dict[str, Any], arrays: Mapping[str, torch.Tensor]) -> SparseTensor | torch.Tensor:
    own = {part: arrays[key] for part, key in facts["arrays"].items()}
    if as_dtype(facts.get("dtype")).is_complex and "values" in own:
        if own["values"].shape[-1:] != (2,) or not own["values"].is_floating_point():
            raise FileError("its complex values are not kept as pairs")
        own["values"] = torch.view_as_complex(aligned(own["values"], 2))
    return from_arrays(facts, {part: aligned(array) for part, array in own.items()})


def _shared(read: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Tensors that have their index arrays in common have one pattern."""
    found: dict[str, Any] = {}
    patterns: dict[Any, Pattern] = {}
    for name, (facts, tensor) in read.items():
        if isinstance(tensor, SparseTensor):
            pattern = tensor.storage.pattern
            own = frozenset((part, key) for part, key in facts["arrays"].items() if part != "values")
            first = patterns.setdefault((pattern.format, pattern.shape, own), pattern)
            tensor = SparseTensor(Storage(first, tensor.storage.values))
        found[name] = tensor
    return found


def _check_names(tensors: Mapping[str, torch.Tensor]) -> None:
    for name in tensors:
        if not isinstance(name, str):
            raise OperandError(f"tensors in a .safetensors file have names; {name!r} is no string")
        if name in (ONE, "__metadata__"):
            raise OperandError(f"a tensor in a .safetensors file cannot have the name {name!r}")


def _free_key(wanted: str, taken: set[str]) -> str:
    """``wanted``, unless a tensor has that name itself."""
    return next(key for key in (wanted + "_" * n for n in itertools.count()) if key not in taken)


def _apart(arrays: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each array in memory of its own, as the library asks for."""
    memory: set[int] = set()
    found = {}
    for key, array in arrays.items():
        here = torch.view_as_real(array) if array.is_complex() else array
        address = here.untyped_storage().data_ptr()
        found[key] = here.clone() if address in memory else here.contiguous()
        memory.add(address)
    return found


def _safetensors() -> ModuleType:
    try:
        import safetensors.torch
    except ImportError:
        raise UnsupportedError(
            "this needs safetensors, which is not installed; get it with: "
            "pip install safetensors (or save as .npz)"
        ) from None
    module: ModuleType = safetensors.torch
    return module
