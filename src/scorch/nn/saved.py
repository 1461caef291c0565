"""Patterns as plain tensors by name, for ``state_dict``: what any file of tensors can hold."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from scorch.errors import FileError
from scorch.formats import Format
from scorch.tensor.coordinates import coordinates
from scorch.tensor.storage import Pattern


def pattern_to(pattern: Pattern) -> dict[str, torch.Tensor]:
    """``format``, letters, order and blocks as numbers, and the index arrays of each level."""
    form = pattern.format
    numbers = [len(form), *map(ord, form.letters), *form.order, *(n for pair in form.blocks for n in pair)]
    found = {"format": torch.tensor(numbers, device="cpu")}
    for level, (pos, crd) in enumerate(zip(pattern.pos, pattern.crd, strict=True)):
        if pos is not None:
            found[f"pos{level}"] = pos
        if crd is not None:
            found[f"crd{level}"] = crd
    return found


def pattern_from(arrays: Mapping[str, torch.Tensor], shape: tuple[int, ...]) -> Pattern:
    """The pattern of ``pattern_to``, with arrays of its own, and checked, since kernels trust it."""
    if "format" not in arrays:
        raise FileError("its format is missing")
    form = _format(arrays["format"].tolist())
    if form.dims != len(shape):
        raise FileError(f"format {form} has {form.dims} dimensions, not {len(shape)}")
    pos: list[torch.Tensor | None] = []
    crd: list[torch.Tensor | None] = []
    counts: list[int] = []
    above = 1
    for level, kind in enumerate(form.levels):
        size = form.level_size(level, shape)
        own_pos, own_crd = _array(arrays, f"pos{level}"), _array(arrays, f"crd{level}")
        if kind.is_full:
            above *= size
        else:
            above = _checked(level, own_pos, own_crd, above, size, form.starts_run(level))
        pos.append(None if kind.is_full or not form.starts_run(level) else own_pos)
        crd.append(None if kind.is_full else own_crd)
        counts.append(above)
    found = Pattern(form, shape, tuple(pos), tuple(crd), tuple(counts))
    _check_order(found)
    return found


def _format(numbers: list[int]) -> Format:
    levels = numbers[0] if numbers else 0
    if levels < 1 or len(numbers) < 1 + 2 * levels or (len(numbers) - 1 - 2 * levels) % 2:
        raise FileError(f"{numbers} describes no format")
    rest = numbers[1 + 2 * levels :]
    letters = "".join(chr(number) for number in numbers[1 : 1 + levels])
    blocks = dict(zip(rest[::2], rest[1::2], strict=True))
    return Format(letters, order=tuple(numbers[1 + levels : 1 + 2 * levels]), blocks=blocks)


def _array(arrays: Mapping[str, torch.Tensor], name: str) -> torch.Tensor | None:
    found = arrays.get(name)
    if found is None:
        return None
    if found.dim() != 1 or found.dtype not in (torch.int32, torch.int64):
        raise FileError(f"{name} is no list of integers")
    return found.detach().to("cpu").clone()


def _checked(
    level: int, pos: torch.Tensor | None, crd: torch.Tensor | None, above: int, size: int, starts: bool
) -> int:
    """The number of positions of a level whose arrays are consistent."""
    if crd is None or (starts and pos is None):
        raise FileError(f"the arrays of level {level} are missing")
    if starts:
        assert pos is not None
        rises = pos.numel() == above + 1 and int(pos[0]) == 0 and bool((pos.diff() >= 0).all())
        if not rises or int(pos[-1]) != crd.numel():
            raise FileError(f"pos{level} does not divide the {crd.numel()} coordinates of crd{level}")
    elif crd.numel() != above:
        raise FileError(f"crd{level} has {crd.numel()} coordinates for {above} entries")
    if crd.numel() and (int(crd.min()) < 0 or int(crd.max()) >= size):
        raise FileError(f"crd{level} has coordinates outside of 0..{size - 1}")
    return crd.numel()


def _check_order(pattern: Pattern) -> None:
    """Refuse entries that are not in order or come twice."""
    found = coordinates(pattern)
    form = pattern.format
    key = torch.zeros((), dtype=torch.int64, device="cpu")
    for dim in dict.fromkeys(form.order):
        block = form.block(dim) or 1
        key = key * (-(-pattern.shape[dim] // block)) + found[dim] // block
    if form.is_blocked:
        for dim, block in form.blocks:
            key = key * block + found[dim] % block
    if key.dim() and bool((key.diff() <= 0).any()):
        raise FileError("its entries are not in order, or come twice")
