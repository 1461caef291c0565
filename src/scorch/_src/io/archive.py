"""A sparse tensor as named arrays and a description, and back: the content of archives.

The description has ``format``, ``shape`` and ``dtype``; the arrays are ``values`` and, level by level,
``pos0``, ``crd0``, ``pos1`` ... Kernels follow these arrays without checks, so whatever comes from outside is
checked here first, as carefully as the arguments of a constructor, and the index arrays are copied: a file
may let them overlap with values or another tensor, and writing to those would change them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from scorch._src.backends.sort_entries import is_sorted
from scorch._src.compiler.typing import type_of_dtype
from scorch._src.devices import is_in_shared_memory
from scorch._src.formats import Format
from scorch._src.storage.complete_levels import completed
from scorch._src.storage.coordinates import inside
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.create.build import index_dtype
from scorch._src.tensor.create.check import (
    as_indices,
    as_shape,
    check_coordinates,
    check_pointers,
    has_sorted_rows,
    is_sorted_below,
    own,
    own_rows,
)
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import FileError

Description = dict[str, Any]

# What torch, NumPy and the standard library raise for files that are truncated, damaged, or something else.
DAMAGED = (EOFError, OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, MemoryError)


# writing ---------------------------------------------------------------------------------------------


def describe_tensor(tensor: torch.Tensor) -> Description:
    """Describe ``tensor``, sparse or dense, as JSON that goes with its arrays."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    description: Description = {"shape": list(tensor.shape), "dtype": dtype}
    if isinstance(tensor, SparseTensor):
        description["format"] = describe_format(tensor.format)
    return description


def arrays_of(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the arrays of ``tensor`` by name; those of a dense tensor are its values alone."""
    if not isinstance(tensor, SparseTensor):
        return {"values": tensor.detach().resolve_conj().resolve_neg().contiguous()}
    pattern = tensor.storage.pattern
    index_arrays = {f"pos{level}": pos for level, pos in enumerate(pattern.pos) if pos is not None}
    index_arrays |= {f"crd{level}": crd for level, crd in enumerate(pattern.crd) if crd is not None}
    return {"values": tensor.storage.values.detach(), **index_arrays}


def describe_format(form: Format) -> Description:
    description: Description = {"levels": form.spelling, "order": list(form.order)}
    if form.blocks:
        description["blocks"] = [list(block) for block in form.blocks]
    return description


# reading ---------------------------------------------------------------------------------------------


def parse_dtype(name: object) -> torch.dtype:
    """Return the dtype with this name, if tensors can have it."""
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise FileError(f"unknown dtype {name!r}")
    type_of_dtype(dtype)
    return dtype


def parse_format(description: object) -> Format:
    is_described = isinstance(description, Mapping) and {"levels", "order"} <= set(description)
    if not isinstance(description, Mapping) or not is_described or not isinstance(description["order"], list):
        raise FileError(f"{description!r} does not describe a format")
    dims = len(set(map(str, description["order"])))
    blocks = description.get("blocks")
    return Format(description["levels"] or "dense", order=description["order"], blocks=blocks, dims=dims)


def from_arrays(description: object, arrays: Mapping[str, torch.Tensor]) -> SparseTensor | torch.Tensor:
    """Build the tensor with this description and arrays; raise an error if they disagree."""
    if not isinstance(description, Mapping):
        raise FileError(f"{description!r} does not describe a tensor")
    shape, values = as_shape("shape", description.get("shape")), arrays.get("values")
    if values is None:
        raise FileError("the array of values is missing")
    if values.dtype != parse_dtype(description.get("dtype")):
        raise FileError(
            f"the values are {values.dtype}, but the tensor is described as {description.get('dtype')}"
        )
    if description.get("format") is None:
        return _as_dense(values, shape)
    form = parse_format(description["format"])
    levels = range(len(form))
    pos = [arrays.get(f"pos{level}") for level in levels]
    crd = [arrays.get(f"crd{level}") for level in levels]
    pattern, flat = check_pattern(form, shape, pos, crd), values.reshape(-1).contiguous()
    check_values(pattern, flat)
    return SparseTensor(Storage(pattern, flat)) if not form.is_dense else _as_dense(values, shape)


def _as_dense(values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    if values.numel() != math.prod(shape):
        raise FileError(f"a tensor of shape {shape} cannot have {values.numel()} values")
    return values.reshape(shape)


def check_pattern(
    form: Format,
    shape: tuple[int, ...],
    pos: list[torch.Tensor | None],
    crd: list[torch.Tensor | None],
    has_contents: bool = True,
    is_sent: bool = False,
    is_own: bool = False,
) -> Pattern:
    """Check arrays, and return the pattern of copies of them: the cost follows the entries.

    Without ``has_contents`` the arrays are still to be filled, and only their lengths are checked. Those that
    another process has sent in shared memory stay there, as do copies that nobody else has (``is_own``).
    """
    if form.dims != len(shape):
        raise FileError(f"format {form} stores {form.dims}-D tensors, but the shape is {shape}")
    counts: list[int] = []
    in_order: set[int] = set()  # levels that are right by themselves
    positions = 1
    for level, level_format in enumerate(form.levels):
        size = form.level_size(level, shape)
        needs = (form.starts_run(level), not level_format.is_full)
        for name, array, needed in (("pos", pos[level], needs[0]), ("crd", crd[level], needs[1])):
            if (array is not None) != needed:
                word = "lacks" if needed else "has"
                raise FileError(f"level {level} of format {form} {word} the array {name}{level}")
            if array is not None:
                _check_array(f"{name}{level}", as_indices(f"{name}{level}", array))
        begins, coordinates = pos[level], crd[level]
        is_run = has_contents and begins is not None and coordinates is not None
        if is_run and has_sorted_rows(begins, coordinates, positions, size):  # type: ignore[arg-type]
            in_order.add(level)
            positions = coordinates.numel()  # type: ignore[union-attr]
        else:
            positions = _check_level(form, level, positions, size, begins, coordinates, has_contents)
        counts.append(positions)
    if has_contents:
        _check_runs(form, pos, crd, in_order)
    dtype = index_dtype(shape, counts)

    def copy(array: torch.Tensor | None) -> torch.Tensor | None:
        if array is None:
            return None
        is_kept = is_own or (is_sent and is_in_shared_memory(array))
        stays = is_kept and array.dtype == dtype and array.is_contiguous()
        return array.detach() if stays or not has_contents else own(array, dtype)

    pattern = Pattern(form, shape, tuple(map(copy, pos)), tuple(map(copy, crd)), tuple(counts))
    if has_contents and completed(pattern)[0] is not pattern:
        raise FileError(f"entries that format {form} stores are missing")
    return pattern


def copy_rows(
    form: Format, shape: tuple[int, ...], pos: list[torch.Tensor | None], crd: list[torch.Tensor | None]
) -> Pattern | None:
    """Check and copy arrays of a matrix in one pass; None if they are of no such format, or not right.

    ``check_pattern`` does the same for all formats, in several passes, and says what is wrong.
    """
    if form.dims != len(shape) or not form.is_compressed_matrix or form.is_padded or form.is_finished:
        return None
    begins, coordinates = pos[1], crd[1]
    if begins is None or coordinates is None:
        return None
    rows, size, entries = form.level_size(0, shape), form.level_size(1, shape), coordinates.numel()
    copies = own_rows(begins, coordinates, rows, size, index_dtype(shape, (rows, entries)))
    if copies is None:
        return None
    return Pattern(form, shape, (None, copies[0]), (None, copies[1]), (rows, entries))


def _check_array(name: str, array: torch.Tensor) -> None:
    """Check that an array is one-dimensional, with memory for each of its elements."""
    if array.dim() != 1:
        raise FileError(f"{name} must be 1-D, but has shape {tuple(array.shape)}")
    if array.numel() * array.element_size() > array.untyped_storage().nbytes():
        raise FileError(f"{name} has less memory than its {array.numel()} elements need")


def check_values(pattern: Pattern, values: torch.Tensor) -> None:
    """Check that there is one value for each position, and zeros in the padding of blocks."""
    _check_array("values", values)
    if values.numel() != pattern.size:
        raise FileError(f"there are {values.numel()} values, but {pattern.size} positions in the last level")
    is_inside = inside(pattern)
    if is_inside is not None and bool((values[~is_inside] != 0).any()):
        raise FileError("the padding of a block must be zero")


def _check_level(
    form: Format,
    level: int,
    parents: int,
    size: int,
    pos: torch.Tensor | None,
    crd: torch.Tensor | None,
    has_contents: bool,
) -> int:
    """Check the arrays of a level, and return its positions below ``parents``."""
    if crd is None:
        return parents * size
    if pos is not None and not has_contents:
        if pos.numel() != parents + 1:
            raise FileError(
                f"pos{level} has {pos.numel()} entries, but the {parents} positions above it need "
                f"{parents + 1}"
            )
    elif pos is not None:
        check_pointers(f"pos{level}", pos, parents, crd.numel(), "positions above")
    elif crd.numel() != parents:
        raise FileError(f"crd{level} has {crd.numel()} coordinates, but the level above has {parents}")
    if has_contents:
        check_coordinates(f"crd{level}", crd, form.order[level], size)
    return crd.numel()


def _check_runs(
    form: Format, pos: list[torch.Tensor | None], crd: list[torch.Tensor | None], in_order: set[int]
) -> None:
    """Check that entries below a position are sorted and unique, level by level or run by run."""
    for level in range(len(form)):
        begins = pos[level]
        if begins is None:
            continue
        last = form.run_from(level)
        first = crd[level]
        if last == level + 1 and first is not None:
            is_fine = level in in_order or is_sorted_below(begins, first)
        else:
            is_fine = _is_run_sorted(begins, [array for array in crd[level:last] if array is not None])
        if not is_fine:
            raise FileError(f"the coordinates of level {level} are not sorted or not unique")


def _is_run_sorted(begins: torch.Tensor, columns: list[torch.Tensor]) -> bool:
    if begins.numel() == 2:
        return is_sorted(columns)
    lengths = begins[1:].to(torch.int64) - begins[:-1]
    parents = torch.arange(lengths.numel(), device=lengths.device).repeat_interleave(lengths)
    return is_sorted([parents, *columns])
