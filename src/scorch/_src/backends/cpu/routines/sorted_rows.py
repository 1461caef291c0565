"""Check the arrays of a compressed level in one pass, and copy them on the way; hash index arrays."""

from __future__ import annotations

import torch

from scorch._src.backends.cpu import invoke, jit, parallel
from scorch._src.backends.cpu.launch import builtins, pack, slot_descriptor
from scorch._src.backends.launcher import address_of
from scorch._src.loops.types import INT32, INT64

SOURCE = jit.read_source("sorted_rows.c")

MIN_ENTRIES_PER_THREAD = 1 << 18
MIN_COPIED_PER_THREAD = 1 << 16
_TYPES = {torch.int32: INT32, torch.int64: INT64}
_NAMES = {torch.int32: "i32", torch.int64: "i64", torch.uint16: "u16"}  # in C
_NARROW = (torch.int32, torch.uint16, torch.int32)  # coordinates that files store in 16 bits


def has_sorted_rows(pos: torch.Tensor, crd: torch.Tensor, size: int) -> bool | None:
    """Check pointers and the coordinates below them; None where only torch can read them."""
    if not _is_plain(pos, crd):
        return None
    at = _address("sorted_rows", pos.dtype)
    if not at:
        return None
    rows, entries = pos.numel() - 1, crd.numel()
    shared = parallel.shared_by(rows + entries, MIN_ENTRIES_PER_THREAD)
    places = address_of(pos), address_of(crd)
    return bool(invoke.make_caller().call(at, *shared, rows, entries, size, *places))


def owned_rows(
    pos: torch.Tensor, crd: torch.Tensor, size: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Copy what ``has_sorted_rows``; None where it has not, or only torch can read it."""
    entries, types = crd.numel(), (pos.dtype, crd.dtype, dtype)
    is_narrow = types == _NARROW and pos.is_contiguous() and crd.is_contiguous()
    if not entries or not crd.is_cpu or dtype not in _TYPES or not (is_narrow or _is_plain(pos, crd)):
        return None
    functions, address = builtins(), _address("own_rows", crd.dtype, dtype)
    if functions is None or not address:
        return None
    rows, index = pos.numel() - 1, _TYPES[dtype]
    shared = parallel.shared_by(rows + entries, MIN_COPIED_PER_THREAD)
    descriptor = slot_descriptor(rows, index, index, 0, (1,))
    new_pos, new_crd, copied = functions.slots(
        (address, 0), pack([*shared, rows, entries, size]), descriptor, None, pos, crd
    )
    return (new_pos, new_crd) if copied == entries else None


def hash_of(array: torch.Tensor) -> int | None:
    """Hash an index array; None where only torch can read it."""
    if not array.is_cpu or array.dtype not in _TYPES or not array.is_contiguous():
        return None
    address = _address("hash", array.dtype)
    return invoke.make_caller().call(address, address_of(array), array.numel()) if address else None


def _is_plain(pos: torch.Tensor, crd: torch.Tensor) -> bool:
    """Whether C can read the arrays."""
    return pos.dtype == crd.dtype and pos.dtype in _TYPES and pos.is_contiguous() and crd.is_contiguous()


def _address(what: str, *dtypes: torch.dtype) -> int:
    types = "_".join([_NAMES[dtype] for dtype in dtypes])
    return jit.function_address(SOURCE, "the check of rows", f"scorch_{what}_{types}")
