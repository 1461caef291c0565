"""Find out whether all of many numbers are finite."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scorch._src.backends.cpu import invoke, jit, parallel
from scorch._src.backends.cpu.launch import FINITE, MIN_SEARCHED_PER_THREAD, builtins
from scorch._src.backends.launcher import address_of


def are_finite(arrays: Sequence[torch.Tensor]) -> bool | None:
    """Check that all numbers in arrays are finite; None where only torch can read them."""
    functions = builtins()
    found = None if functions is None else functions.finite(*arrays)  # where they are small
    return _search(arrays) if found is None else found


def _search(arrays: Sequence[torch.Tensor]) -> bool | None:
    for array in arrays:
        at = _address(array.dtype)
        if not at or not array.is_contiguous() or array.is_neg():
            return None
        shared = parallel.shared_by(array.numel(), MIN_SEARCHED_PER_THREAD)
        if not invoke.make_caller().call(at, *shared, array.numel(), address_of(array)):
            return False
    return True


def _address(dtype: torch.dtype) -> int:
    if dtype not in (torch.float32, torch.float64):
        return 0
    return jit.function_address(
        FINITE, "the search for non-finite values", f"scorch_finite_f{8 * dtype.itemsize}"
    )
