"""NumPy archives (``.npz``): SciPy's layout where SciPy has the format, else the arrays of every level.

A matrix in csr, csc, coo or bsr is written as ``scipy.sparse.save_npz`` would, so that either library reads
what the other wrote. Every other tensor is stored with all of its arrays, and its description as JSON.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scorch._src.devices import HOST
from scorch._src.formats import Format, as_format
from scorch._src.io.archive import DAMAGED, arrays_of, describe_tensor, from_arrays
from scorch._src.io.text_table import Array
from scorch._src.tensor.create.build import from_compressed, from_coordinates
from scorch._src.tensor.create.check import from_numpy
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.interop.torch_layouts import from_scipy, scipy_kind
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import FileError

Arrays = dict[str, Array]


def write_npz(path: Path, tensor: torch.Tensor) -> None:
    """Write one tensor, without compression."""
    tensor = tensor.to(HOST)
    arrays = _scipy_arrays(tensor) if isinstance(tensor, SparseTensor) else None
    if arrays is None:
        description = describe_tensor(tensor)
        arrays = {name: _as_numpy(array) for name, array in arrays_of(tensor).items()}
        arrays["scorch"] = np.frombuffer(json.dumps(description).encode(), dtype=np.uint8)
    with path.open("wb") as file:  # with a name, NumPy may add a second suffix
        np.savez(file, **arrays)  # type: ignore[arg-type]


def read_npz(path: Path, format: str | Format | None = None) -> SparseTensor | torch.Tensor:
    """Read the tensor in ``path``, written by Scorch or by SciPy."""
    arrays = _load(path)
    if "scorch" in arrays:
        tensor = _from_scorch_arrays(path, arrays)
    elif "format" in arrays:
        tensor = _from_scipy_arrays(path, arrays)
    else:
        is_csr = any(name.endswith("indptr") for name in arrays)
        maker = "scorch.sparse_csr_tensor(indptr, indices, data, shape)" if is_csr else "scorch.tensor"
        raise FileError(
            f"{path} is neither a Scorch nor a SciPy archive: it has the arrays "
            f"{', '.join(sorted(arrays)) or 'none'}; read it with numpy.load and use {maker}"
        )
    return tensor if format is None else from_torch(tensor, format)


def _load(path: Path) -> Arrays:
    with path.open("rb") as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except (*DAMAGED, SyntaxError, zipfile.BadZipFile, zlib.error) as error:
            raise FileError(f"{path} is not a complete .npz archive: {error}") from None


# Scorch's --------------------------------------------------------------------------------------------


def _from_scorch_arrays(path: Path, arrays: Arrays) -> SparseTensor | torch.Tensor:
    try:
        description = json.loads(arrays.pop("scorch").tobytes())
    except (ValueError, RecursionError):
        raise FileError(f"{path}: the description of the tensor was not written by Scorch") from None
    tensors = {name: from_numpy(name, array) for name, array in arrays.items()}
    bits = tensors.get("values")
    if bits is not None and bits.dtype == torch.int16 and _is_bfloat16(description):
        tensors["values"] = bits.view(torch.bfloat16)
    return from_arrays(description, tensors)


def _is_bfloat16(description: Any) -> bool:
    return isinstance(description, dict) and description.get("dtype") == "bfloat16"


def _as_numpy(array: torch.Tensor) -> Array:
    """Convert to NumPy, which has no bfloat16: its bits are stored as integers."""
    return (array.view(torch.int16) if array.dtype == torch.bfloat16 else array).numpy()


# SciPy's ---------------------------------------------------------------------------------------------


def _scipy_arrays(tensor: SparseTensor) -> Arrays | None:
    """Return the arrays of SciPy's matrix for this tensor; None where it has no such matrix or dtype."""
    pattern, values = tensor.storage.pattern, tensor.storage.values.detach()
    if len(pattern.shape) != 2 or values.dtype in (torch.bfloat16, torch.float16):
        return None
    is_coo = pattern.format == as_format("coo", 2)
    kind = "coo" if is_coo else scipy_kind(pattern)
    if kind is None:
        return None
    crd = [array.numpy() for array in pattern.crd if array is not None]
    pos = [array.numpy() for array in pattern.pos if array is not None]
    indices = {"row": crd[0], "col": crd[1]} if is_coo else {"indices": crd[0], "indptr": pos[0]}
    blocks = [block for _, block in pattern.format.blocks]
    return {
        **indices,
        "format": np.array(kind.encode("ascii")),
        "shape": np.array(pattern.shape),
        "data": values.numpy().reshape(-1, *blocks),
        "_is_array": np.array(True),
    }


def _from_scipy_arrays(path: Path, arrays: Arrays) -> SparseTensor | torch.Tensor:
    kind = str(np.char.decode(arrays["format"]) if arrays["format"].dtype.kind == "S" else arrays["format"])
    names = {"coo": ("row", "col"), "dia": ("offsets",)}.get(kind, ("indices", "indptr"))
    if kind == "coo" and "coords" in arrays:
        names = ("coords",)
    for name in ("shape", "data", *names):
        if name not in arrays:
            raise FileError(f"{path} has a SciPy matrix in {kind}, but no array {name!r}")
    shape = tuple(arrays["shape"].tolist())
    data = arrays["data"]
    if kind == "dia":
        import scipy.sparse

        return from_scipy(scipy.sparse.dia_array((data, arrays["offsets"]), shape=shape))
    values = from_numpy("data", data)
    if kind == "coo":
        rows: Any = arrays["coords"] if "coords" in arrays else [arrays["row"], arrays["col"]]
        return from_coordinates(rows, values, shape, name="coords")
    if kind in ("csr", "csc", "bsr") and len(shape) == 2:
        return from_compressed(kind, arrays["indptr"], arrays["indices"], values, shape)
    raise FileError(
        f"{path} has a SciPy matrix in the unknown format {kind!r}; choose from csr, csc, coo, bsr and dia"
    )
