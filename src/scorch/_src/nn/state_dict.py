"""Patterns as plain tensors by name, for ``state_dict``: any file of tensors can hold them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from scorch._src.devices import HOST
from scorch._src.formats import Format
from scorch._src.io.archive import check_pattern
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.create.check import own
from scorch.errors import FileError


def pattern_to_arrays(pattern: Pattern) -> dict[str, torch.Tensor]:
    """Convert a pattern: ``format``, letters, order and blocks as numbers, and the arrays of each level."""
    form = pattern.format
    numbers = [len(form), *map(ord, form.spelling), *form.order, *(n for pair in form.blocks for n in pair)]
    arrays = {"format": torch.tensor(numbers, device=HOST)}
    for level, (pos, crd) in enumerate(zip(pattern.pos, pattern.crd, strict=True)):
        if pos is not None:
            arrays[f"pos{level}"] = own(pos)
        if crd is not None:
            arrays[f"crd{level}"] = own(crd)
    return arrays


def pattern_from_arrays(
    arrays: Mapping[str, torch.Tensor], shape: tuple[int, ...], device: torch.device
) -> Pattern:
    """Convert back the arrays of ``pattern_to_arrays``, copied and checked, since kernels trust a pattern."""
    if "format" not in arrays:
        raise FileError("its format is missing")
    form = _format(arrays["format"].tolist())
    levels = range(len(form))
    pos, crd = ([_array(arrays, f"{name}{level}", device) for level in levels] for name in ("pos", "crd"))
    return check_pattern(form, shape, pos, crd)


def _format(numbers: list[int]) -> Format:
    levels = numbers[0] if numbers else 0
    if levels < 1 or len(numbers) < 1 + 2 * levels or (len(numbers) - 1 - 2 * levels) % 2:
        raise FileError(f"{numbers} describes no format")
    rest = numbers[1 + 2 * levels :]
    letters = "".join(chr(number) for number in numbers[1 : 1 + levels])
    blocks = dict(zip(rest[::2], rest[1::2], strict=True))
    return Format(letters, order=tuple(numbers[1 + levels : 1 + 2 * levels]), blocks=blocks)


def _array(arrays: Mapping[str, torch.Tensor], name: str, device: torch.device) -> torch.Tensor | None:
    array = arrays.get(name)
    if array is None:
        return None
    if array.dim() != 1 or array.dtype not in (torch.int32, torch.int64):
        raise FileError(f"{name} is no list of integers")
    return array.detach().to(device)
