"""Random tensors, formats and expressions for property tests."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from hypothesis import settings
from hypothesis import strategies as st

from properties.packing import pack
from scorch import Format, SparseTensor
from validity import dense_of

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
]
SIZES = [0, 1, 2, 3, 5, 7]
FEWER = settings(max_examples=max(1, settings.default.max_examples // 4))  # where a case takes long


@st.composite
def formats(draw, dims: int) -> Format:
    """Any format for ``dims`` dimensions: levels, order and perhaps blocks."""
    split = [dim for dim in range(dims) if draw(st.integers(0, 9)) == 0]
    order = draw(st.permutations([*range(dims), *split]))
    letters = "".join(draw(st.sampled_from("dssomb")) for _ in order)
    blocks = {dim: draw(st.integers(1, 4)) for dim in split}
    return Format(letters or "dense", order=order, blocks=blocks, dims=dims)


@st.composite
def usual_formats(draw, dims: int) -> Format:
    """One of the few formats that most tensors have, in stored order, so that several tensors agree in it."""
    letters = {
        1: ["s", "o", "d"],
        2: ["ds", "ss", "oo", "sd"],
        3: ["sss", "ooo", "dds", "sdd", "dsd", "ssd"],
    }.get(dims)
    if letters is None:
        return draw(formats(dims))
    return Format(draw(st.sampled_from(letters)), dims=dims)


@dataclass
class Drawn:
    """A tensor in both forms; ``dense`` is the truth."""

    dense: torch.Tensor
    given: torch.Tensor
    format: Format | None

    def __repr__(self) -> str:
        return f"{self.format!r}{tuple(self.dense.shape)}{self.dense.dtype}\n{self.dense}"


def random_dense(shape: tuple[int, ...], dtype: torch.dtype, density: float, seed: int) -> torch.Tensor:
    """Values that are exact in every dtype, so that sums have no rounding."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-3, 4, shape, generator=generator)
    if dtype in (torch.uint8, torch.bool):
        values = values.abs()
    values = values.to(dtype)
    if dtype.is_complex:
        values = values + 1j * torch.randint(-3, 4, shape, generator=generator)
        values = values.to(dtype)
    kept = torch.rand(shape, generator=generator) < density
    return torch.where(kept, values, torch.zeros((), dtype=dtype))


@st.composite
def tensors(draw, shape: tuple[int, ...], dtype: torch.dtype, form: Format | None = None) -> Drawn:
    """A tensor of ``shape`` in a drawn format, sometimes plain dense."""
    density = draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    dense = random_dense(shape, dtype, density, draw(st.integers(0, 2**16)))
    form = form or draw(formats(len(shape)))
    if form.is_dense:
        strided = dense
        if len(shape) > 1 and draw(st.booleans()):  # a transposed view
            strided = dense.transpose(0, -1).contiguous().transpose(0, -1)
        return Drawn(dense, strided, None)
    stored = dense != 0
    if draw(st.integers(0, 4)) == 0:  # some zeros are stored
        generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
        stored = stored | (torch.rand(shape, generator=generator) < 0.3)
    return Drawn(dense, SparseTensor(pack(dense, form, stored)), form)


def sizes_for(draw, letters: str, most: int = 2000) -> dict[str, int]:
    """A size for each index; the whole iteration space stays small."""
    sizes = {}
    for letter in letters:
        sizes[letter] = draw(st.sampled_from(SIZES))
        if math.prod(sizes.values()) > most:
            sizes[letter] = 2
    return sizes


def to_dense(result: torch.Tensor) -> torch.Tensor:
    """The dense meaning of a result, read without a kernel."""
    return dense_of(result) if isinstance(result, SparseTensor) else result
