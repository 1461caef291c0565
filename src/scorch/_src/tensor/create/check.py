"""Check the arguments of constructors: arrays, sizes, coordinates and pointers.

Kernels trust the index arrays of a pattern, so this file refuses every array that they cannot follow.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from scorch._src.backends.base import (
    check_waiting,
    is_available,
    is_served,
    needs_behind,
    needs_of,
    routines_for,
    served_devices,
    served_in_words,
)
from scorch._src.compiler.typing import type_of_dtype
from scorch._src.devices import HOST, META
from scorch._src.grad_state import is_differentiable
from scorch._src.name_hints import as_dtype
from scorch._src.torch_internals import is_functional_tensor
from scorch.errors import (
    CallError,
    DtypeError,
    FreedError,
    IndexRangeError,
    MissingDeviceError,
    OperandError,
    ShapeError,
    UnsupportedError,
    add_note,
    kind_of,
)

MAX_SIZE = 2**63 - 1
MANY_INDICES = 4096  # from which on a routine may be faster than torch
IN_SHAPE = "whether coordinates lie in the shape"
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def refuse_nested(name: str, value: torch.Tensor) -> None:
    """Raise for a nested tensor, whose rows have different lengths; some have no shape to read."""
    if value.is_nested:
        advice = "pad it with torch.nested.to_padded_tensor(x, 0.0)"
        raise UnsupportedError(f"{name} is a nested tensor; {advice}")


def advice_on(value: object, name: str = "") -> str:
    """Return how to make a tensor of a value that is none; ``name`` is that of the argument."""
    if type(value).__module__ == "torch.fx.proxy":
        return "torch.fx does not trace into layers of Scorch; use torch.export.export"
    if hasattr(value, "to_scorch"):
        return "convert it, as in A.to_scorch()"
    if name and isinstance(getattr(value, name, None), torch.Tensor):  # of the data of a graph
        return f"pass its {name}"
    if hasattr(value, "edge_index"):
        return "pass one of its tensors, such as its x"
    package = type(value).__module__.partition(".")[0]
    if package == "networkx":
        return "create one with scorch.from_networkx"
    if package in ("numpy", "scipy"):
        return f"create one with {'torch.from_numpy' if package == 'numpy' else 'scorch.from_scipy'}"
    if isinstance(value, (list, tuple)):
        if name == "edge_index" and holds_tensors(value) and value[0].dim() == 2:  # as S.to_edge_index()
            return "pass edges and weights as two arguments: *pair unpacks a pair of them"
        stacked = "torch.stack([row, column])" if len(value) == 2 else "torch.stack"
        return f"create one with {stacked if holds_tensors(value) else 'torch.tensor'}"
    return "create one with torch.tensor or scorch.from_scipy"


def is_path(value: object) -> bool:
    return isinstance(value, (str, os.PathLike))


def holds_tensors(value: object) -> bool:
    """Whether a value is a list or tuple of tensors, such as a pair of rows and columns."""
    is_list = isinstance(value, (list, tuple)) and len(value) > 0
    return is_list and all(isinstance(part, torch.Tensor) and part.dim() for part in value)  # type: ignore[attr-defined]


def check_tensor(name: str, value: object) -> None:
    """Refuse what is no tensor, and say how to make one of it."""
    if not isinstance(value, torch.Tensor):
        raise OperandError(f"{name} must be a tensor, but got {kind_of(value)}; {advice_on(value, name)}")
    if value.layout is torch.strided:  # those of another layout have a shape, and some functions take them
        refuse_nested(name, value)


def sparse_advice_on(value: object) -> str:
    """Return how to make a sparse tensor of a value that is none."""
    if hasattr(value, "to_scorch"):
        return advice_on(value)
    if isinstance(value, torch.Tensor):
        return "create one with scorch.from_torch(tensor, format='csr')"
    if type(value).__module__.partition(".")[0] == "scipy":
        return "create one with scorch.from_scipy(matrix)"
    if is_path(value):
        return "load a file with scorch.load(path)"
    if isinstance(value, (list, tuple, np.ndarray)):
        return "create one with scorch.tensor(data, format='csr')"
    return "create one with scorch.tensor, scorch.from_torch or scorch.from_scipy"


def as_device(device: Any) -> torch.device:
    """Return a device that was named, as torch does."""
    if isinstance(device, torch.device):
        return device
    try:
        return torch.device(device)
    except RuntimeError as error:
        if not isinstance(device, str) or needs_behind(str(error)):
            raise
        supported = f"Scorch supports the devices {served_in_words()}"
        raise CallError(f"there is no device {device!r}; {supported}") from None


def check_device(name: str, device: Any) -> None:
    """Refuse a device that no backend computes on."""
    if device is None:
        return
    device = as_device(device)
    if is_served(device):
        return
    needs = needs_of(device.type)
    if needs:  # no operand is there, so it was named for a new tensor
        raise MissingDeviceError(
            f"{name}: device {device} is not available in this build of PyTorch. {needs}"
        )
    text = f"{name} is on device {device}, but Scorch supports only the devices {served_in_words()}"
    usual = served_devices()[0]
    raise OperandError(f"{text}; " + (f"create it on {usual}" if device == META else f"use .{usual}()"))


def device_for(name: str, device: Any = None) -> torch.device:
    """Return the device of a new tensor: the one that was named, or torch's default device."""
    chosen = torch.empty(0).device if device is None else as_device(device)  # graphs can trace it
    check_device(name, chosen)
    if device is not None:
        check_presence(name, chosen)
    return chosen


def check_presence(name: str, device: torch.device) -> None:
    """Refuse a device that torch was built for, and that this machine does not have."""
    if not is_available(device):
        text = f"device {device} is not available on this machine"
        raise MissingDeviceError(f"{name}: {text}. {needs_of(device.type)}")


def refuse_pinning(pin_memory: bool) -> None:
    if pin_memory:
        raise UnsupportedError(
            "pin_memory=True is not supported here; pin the tensor afterwards, as in S.pin_memory()"
        )


def is_freed(tensor: torch.Tensor) -> bool:
    """Whether the memory of a dense tensor was freed (``untyped_storage().resize_(0)``)."""
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        return False
    try:
        if tensor.data_ptr() or not tensor.numel():
            return False
    except RuntimeError:  # a tensor of torch.func or of another layout
        return False
    return not tensor.is_meta and not tensor._is_zerotensor()


def error_of_freed(tensor: torch.Tensor) -> tuple[type[FreedError | UnsupportedError], str]:
    """Return the error for a dense tensor without memory: a class and a text."""
    shape = tuple(tensor.shape)
    if is_functional_tensor(tensor):
        return UnsupportedError, (
            f"a dense tensor of shape {shape} is inside torch.func.functionalize, which does not support "
            "sparse tensors; call the function directly"
        )
    return FreedError, (
        f"a dense tensor of shape {shape} has no memory: its storage was resized or freed; create it again"
    )


def refuse_freed(*values: Any) -> None:
    """Refuse dense tensors whose memory was freed: PyTorch functions would crash the process."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if is_freed(value):
                kind, text = error_of_freed(value)
                raise kind(text)
        elif isinstance(value, (list, tuple)):
            refuse_freed(*value)


# arrays ----------------------------------------------------------------------------------------------


def as_tensor(name: str, data: Any, device: torch.device | None = None) -> torch.Tensor:
    """Convert lists, NumPy arrays and tensors to a plain tensor, without a copy where possible.

    Lists and arrays become tensors on ``device``, or on that of ``device_for``.
    """
    if isinstance(data, torch.Tensor):
        if data.device != HOST:
            check_device(name, data.device)
        refuse_freed(data)
        if data.layout != torch.strided:
            raise OperandError(f"{name} must be a dense tensor, but got layout {data.layout}")
        plain = data.detach()
        return plain.resolve_conj().resolve_neg() if plain.is_conj() or plain.is_neg() else plain
    if isinstance(data, np.ndarray):
        return from_numpy(name, data).to(device_for(name, device))
    where = device_for(name, device)
    try:
        return torch.tensor(data, device=where)
    except (TypeError, ValueError, RuntimeError) as error:
        if holds_tensors(data) or not isinstance(data, (list, tuple, str)):
            check_tensor(name, data)
        raise OperandError(f"{name} is not an array of numbers: {error}") from None


def from_numpy(name: str, array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Convert a NumPy array to a tensor that shares its memory, unless torch cannot use it."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise DtypeError(
            f"{name} has the NumPy dtype {array.dtype}, which PyTorch does not support; convert it with "
            f".astype('{'complex128' if array.dtype.kind == 'c' else 'float64'}')"
        ) from None


def as_indices(name: str, data: Any, device: torch.device | None = None) -> torch.Tensor:
    """Convert coordinates or pointers to a tensor of integers."""
    indices = as_tensor(name, data, device)
    if indices.dtype in _INTEGERS:
        return indices
    is_unsigned = indices.dtype in (torch.uint16, torch.uint32, torch.uint64)
    if is_unsigned or indices.numel() == 0:  # the dtype of an empty list means nothing
        return indices.to(torch.int64)
    dtype = str(indices.dtype).removeprefix("torch.")
    raise DtypeError(f"{name} must be int64 or int32, but got {dtype}; use .long() if these are indices")


def own(array: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Copy an index array, without gaps, to memory that nobody else can write to.

    Kernels do not check the arrays of a pattern, and patterns are shared and never change. So arrays from
    users and files are copied, and so are those returned to them.
    """
    wanted = array.dtype if dtype is None else dtype
    if type(array) is torch.Tensor and array.numel() >= MANY_INDICES:
        return routines_for(array).copy_indices(array.detach(), wanted)
    return array.detach().to(wanted, copy=True, memory_format=torch.contiguous_format)


def as_values(
    name: str, data: Any, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> torch.Tensor:
    """Convert values to a tensor of a dtype that kernels support."""
    values = as_tensor(name, data, device)
    wanted = checked_dtype(name, as_dtype("dtype", dtype) or values.dtype)
    return values if values.dtype is wanted else values.to(wanted)


def as_differentiable_values(
    name: str, data: Any, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> torch.Tensor:
    """Convert as ``as_values`` does; a tensor that requires a gradient stays connected."""
    if not isinstance(data, torch.Tensor) or data.layout != torch.strided or not is_differentiable(data):
        return as_values(name, data, dtype, device)
    check_device(name, data.device)
    return data.to(checked_dtype(name, as_dtype("dtype", dtype) or data.dtype))


def checked_dtype(name: str, wanted: torch.dtype) -> torch.dtype:
    """Return the dtype, if kernels support it."""
    try:
        type_of_dtype(wanted)
    except DtypeError as error:
        add_note(error, f"in {name}")
        raise
    return wanted


# sizes -----------------------------------------------------------------------------------------------


def as_shape(name: str, size: Any) -> tuple[int, ...]:
    """Convert sizes to a tuple of non-negative integers."""
    if isinstance(size, (torch.Tensor, np.ndarray)):
        size = size.tolist()
    if not isinstance(size, tuple) and (isinstance(size, str) or not isinstance(size, Sequence)):
        raise ShapeError(f"{name} must list the size of each dimension, such as (3, 4), but got {size!r}")
    return tuple(_checked_size(name, dim, length) for dim, length in enumerate(size))


def _checked_size(name: str, dim: int, length: Any) -> int:
    try:
        number = operator.index(length)
    except TypeError:
        number = -1
    if isinstance(length, bool) or number < 0:
        hint = (
            f"; pass a density by name, density={length!r}"
            if isinstance(length, float) and 0 < length < 1
            else ""
        )
        raise ShapeError(f"{name}[{dim}] must be a non-negative integer, but got {length!r}{hint}")
    if number > MAX_SIZE:
        raise ShapeError(f"{name}[{dim}] is {number}; the largest size is 2**63 - 1")
    return number


# coordinates and pointers ----------------------------------------------------------------------------


def check_all_coordinates(name: str, arrays: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
    """Check that the coordinates in each of the first dimensions lie in it, with one look at the arrays."""
    if not arrays or arrays[0].numel() == 0:
        return
    check_waiting(arrays[0].device, IN_SHAPE)
    bounds = torch.stack([bound for array in arrays for bound in torch.aminmax(array)]).tolist()
    for dim, (array, size) in enumerate(zip(arrays, sizes, strict=False)):
        if bounds[2 * dim] < 0 or bounds[2 * dim + 1] >= size:
            check_coordinates(f"{name}[{dim}]", array, dim, size)


def check_coordinates(name: str, array: torch.Tensor, dim: int, size: int, block: int | None = None) -> None:
    """Check that every coordinate lies in dimension ``dim`` of ``size``, counted in blocks if it has them."""
    if array.numel() == 0:
        return
    check_waiting(array.device, IN_SHAPE)
    places = size if block is None else -(-size // block)
    low, high = torch.aminmax(array)
    if int(low) >= 0 and int(high) < places:
        return
    flat = array.reshape(-1)
    entry = int(((flat < 0) | (flat >= places)).nonzero()[0])
    has = f"has size {size}" if block is None else f"has {places} blocks of {block}"
    allowed = f"coordinates must be from 0 to {places - 1}" if places else "it has no coordinates"
    raise IndexRangeError(
        f"{name} has {int(flat[entry])} at entry {entry}, but dimension {dim} {has}: {allowed}"
    )


def check_pointers(name: str, pointers: torch.Tensor, rows: int, entries: int, what: str) -> None:
    """Check that ``pointers`` (rows of them in a batch) go from 0 to ``entries`` without falling."""
    if pointers.shape[-1] != rows + 1:
        raise ShapeError(
            f"{name} has {pointers.shape[-1]} entries, but {rows} {what} need {rows + 1}: where each begins, "
            "and where the last ends"
        )
    check_waiting(pointers.device, "whether pointers are valid")
    batches = pointers.reshape(-1, rows + 1)
    never_falls = (batches[:, 1:] >= batches[:, :-1]).all(1)
    is_wrong = ~(never_falls & (batches[:, 0] == 0) & (batches[:, -1] == entries))
    if not bool(is_wrong.any()):
        return
    number = int(is_wrong.nonzero()[0])
    row = batches[number].tolist()
    at = next((place for place in range(rows) if row[place + 1] < row[place]), None)
    if row[0] != 0:
        mistake = f"begins with {row[0]}; the first pointer must be 0"
    elif at is not None:
        falls = f"falls from {row[at]} at entry {at} to {row[at + 1]} at entry {at + 1}"
        mistake = f"{falls}; pointers must not decrease"
    else:
        mistake = (
            f"ends with {row[-1]}, but there are {entries} entries; the last pointer must be their number"
        )
    where = f"{name} of batch {number}" if pointers.dim() > 1 else name
    raise IndexRangeError(f"{where} {mistake}")


LAST_SIZE = 2**63 - 1


def has_sorted_rows(pos: torch.Tensor, crd: torch.Tensor, rows: int, size: int) -> bool:
    """Whether these are the arrays of ``rows`` rows, with coordinates that are sorted and lie in ``size``.

    Where they are not, the checks of each array find out why.
    """
    return _are_rows(pos, crd, rows) and routines_for(crd).has_sorted_rows(pos, crd, size)


def _are_rows(pos: torch.Tensor, crd: torch.Tensor, rows: int) -> bool:
    return pos.dim() == crd.dim() == 1 and pos.shape[0] == rows + 1


def own_rows(
    pos: torch.Tensor, crd: torch.Tensor, rows: int, size: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return copies of arrays that ``has_sorted_rows``, as ``own`` does; None where they have not."""
    return routines_for(crd).own_rows(pos, crd, size, dtype) if _are_rows(pos, crd, rows) else None


def is_sorted_below(pos: torch.Tensor, crd: torch.Tensor) -> bool:
    """Whether the coordinates below each position are sorted and none repeats."""
    return has_sorted_rows(pos, crd, pos.numel() - 1, LAST_SIZE)


def checked_device(name: str, device: Any, pin_memory: bool) -> torch.device | None:
    """Check the device, if one is named: lists become tensors there, or on torch's default device."""
    chosen = None if device is None else device_for(name, device)
    refuse_pinning(pin_memory)
    return chosen


def moved(data: Any, where: torch.device | None) -> Any:
    """Return a tensor, or a list of some, on the device that was named, if one was."""
    if where is None:
        return data
    if isinstance(data, torch.Tensor):
        return data.to(where)
    is_list = isinstance(data, (list, tuple)) and any(isinstance(part, torch.Tensor) for part in data)
    return [moved(part, where) for part in data] if is_list else data
