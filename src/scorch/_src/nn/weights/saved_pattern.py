"""Sparsity patterns in a ``state_dict``: one integer tensor each, which any file of tensors can hold.

The tensor has 32-bit words: the number of words that describe the format, these, for each array of each level
the bytes per element, their number in two words, and the elements, and finally the shape, two words for each
size, which older files do not have. Coordinates below 65,536 take two bytes. It is one tensor, since many
small ones take longer to load than their contents. Still older files have one tensor per array.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from scorch._src.devices import HOST
from scorch._src.formats import Format
from scorch._src.io.archive import check_pattern, copy_rows
from scorch._src.nn.pattern import MAX_NARROW, weight_format
from scorch._src.storage.storage import Pattern
from scorch.errors import FileError, warn

MAX_FORMAT_WORDS = 256
USUAL_WORDS = 16  # as many as formats of matrices have
_ELEMENTS = {2: np.uint16, 4: np.int32, 8: np.int64}  # by their bytes
_HEADER_WORDS = 3
_COUNT_BITS = 31  # of the number of elements in the first of its two words

Shape = tuple[int, ...]
Words = np.ndarray[Any, Any]


def pattern_to_words(pattern: Pattern) -> torch.Tensor:
    """Convert a pattern to a tensor of 32-bit integers on its device."""
    form = pattern.format
    numbers = [len(form), *map(ord, form.spelling), *form.order, *(n for pair in form.blocks for n in pair)]
    parts = [torch.tensor([len(numbers), *numbers], dtype=torch.int32, device=HOST)]
    for level, (pos, crd) in enumerate(zip(pattern.pos, pattern.crd, strict=True)):
        is_narrow = form.level_size(level, pattern.shape) <= MAX_NARROW
        parts += [] if pos is None else _array_to_words(pos)
        parts += [] if crd is None else _array_to_words(crd.to(torch.int16) if is_narrow else crd)
    sizes = [word for size in pattern.shape for word in (size & (1 << _COUNT_BITS) - 1, size >> _COUNT_BITS)]
    parts.append(torch.tensor(sizes, dtype=torch.int32, device=HOST))
    return torch.cat(parts).to(pattern.device)


def _array_to_words(array: torch.Tensor) -> list[torch.Tensor]:
    size, count = array.element_size(), array.numel()
    numbers = [size, count & (1 << _COUNT_BITS) - 1, count >> _COUNT_BITS]
    padded = torch.cat([array, array.new_zeros(count % 2 if size == 2 else 0)]).to(HOST)
    return [torch.tensor(numbers, dtype=torch.int32, device=HOST), padded.view(torch.int32)]


def warn_of_save_pretrained(state_dict: Mapping[str, Any]) -> None:
    """Warn, before the first pattern is added, that Hugging Face writes a file that it cannot load.

    ``from_pretrained`` builds the model with dense layers, and draws the weights that it does not find.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "save_pretrained":
        frame = frame.f_back
    if frame is None or any(name.endswith("pattern") for name in state_dict):
        return
    warn(
        "from_pretrained cannot load what save_pretrained writes for a model with sparse layers: it would "
        "build dense layers with random weights. Load the file with scorch.nn.load_sparse(model, "
        "scorch.load('model.safetensors')), where model is a dense one made from the configuration"
    )


def pattern_from_words(words: torch.Tensor, shape: Shape, device: torch.device) -> Pattern:
    """Convert the words of ``pattern_to_words`` to a pattern, copied and validated for kernels."""
    if words.dim() != 1 or words.dtype != torch.int32:
        raise FileError("a sparsity pattern must be a 1-D tensor of 32-bit integers")
    numbers = words.detach().to(HOST).contiguous().numpy()
    form, at = _read_format(numbers)
    pos: list[torch.Tensor | None] = []
    crd: list[torch.Tensor | None] = []
    for level, level_format in enumerate(form.levels):
        for arrays, is_stored in ((pos, form.starts_run(level)), (crd, not level_format.is_full)):
            array = None
            if is_stored:
                array, at = _array_from_words(numbers, at)
            arrays.append(array)
    _check_shape(numbers[at:], shape)
    pattern = copy_rows(form, shape, pos, crd) if device == HOST else None
    if pattern is not None:
        return pattern
    pos, crd = ([_as_index(array, device) for array in arrays] for arrays in (pos, crd))
    return check_pattern(form, shape, pos, crd, is_own=True)


def _check_shape(words: Words, shape: Shape) -> None:
    """Refuse the pattern of a weight of another shape, which may have all its entries in this one."""
    if words.size == 0:  # of an older file
        return
    if words.size != 2 * len(shape):
        raise FileError("the sparsity pattern is truncated")
    pairs = words.tolist()
    sizes = tuple(low + (high << _COUNT_BITS) for low, high in zip(pairs[::2], pairs[1::2], strict=True))
    if sizes != tuple(shape):
        raise FileError(f"it is of a weight of shape {sizes}")


def _read_format(numbers: Words) -> tuple[Format, int]:
    """Return the format, and where the first array begins."""
    start = numbers[:USUAL_WORDS].tolist()
    if start and start[0] >= len(start):
        start = numbers[: MAX_FORMAT_WORDS + 1].tolist()
    at = 1 + start[0] if start else 0
    if not 1 <= at <= len(start):
        raise FileError("a sparsity pattern must begin with its format")
    return _parse_format(start[1:at]), at


def _as_index(array: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    """Return a copy of a stored array, 16-bit coordinates as 32-bit integers."""
    if array is None:
        return None
    return (array.to(torch.int32) if array.dtype == torch.uint16 else array.clone()).to(device)


def _array_from_words(numbers: Words, at: int) -> tuple[torch.Tensor, int]:
    """Return the array that begins at a word, and where the next one begins."""
    begin = at + _HEADER_WORDS
    header = numbers[at:begin].tolist()
    size, low, high = header if len(header) == _HEADER_WORDS else (0, 0, 0)
    count = low + (high << _COUNT_BITS)
    length = -(-size * count // 4)
    if size not in _ELEMENTS or count < 0 or length > numbers.size - begin:
        raise FileError("the sparsity pattern is truncated")
    array = numbers[begin : begin + length].view(_ELEMENTS[size])[:count]
    return torch.from_numpy(array if array.flags.aligned else array.copy()), begin + length


def pattern_from_arrays(arrays: Mapping[str, torch.Tensor], shape: Shape, device: torch.device) -> Pattern:
    """Convert the arrays of older files, by name, to a pattern; they are copied and validated."""
    if "format" not in arrays:
        raise FileError("its format is missing")
    form = _parse_format(arrays["format"].tolist())
    levels = range(len(form))
    pos, crd = ([_array(arrays, f"{name}{level}", device) for level in levels] for name in ("pos", "crd"))
    return check_pattern(form, shape, pos, crd)


def _parse_format(numbers: list[int]) -> Format:
    levels = numbers[0] if numbers else 0
    if levels < 1 or len(numbers) < 1 + 2 * levels or (len(numbers) - 1 - 2 * levels) % 2:
        raise FileError(f"{numbers} does not describe a format")
    return _make_format(tuple(numbers))


@functools.lru_cache(maxsize=64)
def _make_format(numbers: tuple[int, ...]) -> Format:
    levels = numbers[0]
    rest = numbers[1 + 2 * levels :]
    letters = "".join(chr(number) for number in numbers[1 : 1 + levels])
    blocks = dict(zip(rest[::2], rest[1::2], strict=True))
    return Format(letters, order=tuple(numbers[1 + levels : 1 + 2 * levels]), blocks=blocks)


def _array(arrays: Mapping[str, torch.Tensor], name: str, device: torch.device) -> torch.Tensor | None:
    array = arrays.get(name)
    if array is None:
        return None
    if array.dim() != 1 or array.dtype not in (torch.int32, torch.int64):
        raise FileError(f"{name} is not a 1-D integer tensor")
    return array.detach().to(device)


@functools.lru_cache(maxsize=64)
def empty_pattern(rows: int, columns: int) -> Pattern:
    """Return the pattern of a matrix that stores nothing."""
    pos = torch.zeros(rows + 1, dtype=torch.int32, device=HOST)
    crd = torch.zeros(0, dtype=torch.int32, device=HOST)
    return Pattern(weight_format("csr"), (rows, columns), (None, pos), (None, crd), (rows, 0))
