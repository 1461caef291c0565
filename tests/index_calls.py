"""Random calls of every function of torch that takes places, with arguments that are often wrong.

A call is drawn from a seed, so that the same seed is the same call on a dense tensor and on a sparse one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import scorch

FORMATS = {
    1: ["s", "o"],
    2: ["csr", "csc", "coo", "dcsr", "bsr(2,2)", "sd"],
    3: ["sss", "ooo", "dds", "dsd"],
}
SIZES = (0, 1, 2, 2, 3, 3, 5)
DTYPES = (torch.float32, torch.float32, torch.float32, torch.float64, torch.int64, torch.bool)
FAR = (2**31, 2**40, -(2**40), 2**62, -(2**63), 2**63 - 1)


Make = Callable[[torch.Tensor], torch.Tensor]  # an operand of a drawn dense tensor: a sparse one, or a copy


@dataclass(frozen=True)
class Call:
    """What is called, in words, and the call on operands that are made by the function it is given."""

    text: str
    run: Callable[[Make], Any]


class Draw:
    """Random arguments, often wrong in some way; with ``is_plain`` for a matrix of float32 in csr or coo."""

    def __init__(self, seed: int, is_plain: bool = False) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        dims = 2 if is_plain else self.random.choice((1, 2, 2, 2, 3))
        self.shape = tuple(self.random.choice(SIZES) for _ in range(dims))
        self.format = self.random.choice(("csr", "coo") if is_plain else FORMATS[dims])
        self.dtype = torch.float32 if is_plain else self.random.choice(DTYPES)
        self.is_sparse_source = self.rarely(3)
        self.said: list[str] = []

    def rarely(self, of: int = 6) -> bool:
        return self.random.randrange(of) == 0

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        numbers = torch.randint(-3, 4, shape, generator=self.generator)
        kept = torch.rand(shape, generator=self.generator) < 0.6
        return torch.where(kept, numbers, 0).to(dtype)

    def dim(self) -> int:
        rank = len(self.shape)
        found = self.random.randrange(-rank, rank)
        return found if not self.rarely(20) else self.random.choice((rank, -rank - 1, 100))

    def size(self, dim: int) -> int:
        return self.shape[dim] if -len(self.shape) <= dim < len(self.shape) else 3

    def places(self, shape: tuple[int, ...], size: int) -> torch.Tensor:
        """Places below ``size``; sometimes one of them is negative, too large or very far away."""
        found = torch.randint(max(size, 1), shape, generator=self.generator)
        if found.numel() and self.rarely(3):
            near = (-1, -size, -size - 1, size, size + 1)
            wrong = self.random.choice((*near, *near, *FAR))
            found.view(-1)[self.random.randrange(found.numel())] = wrong
        if not size and found.numel() and found.dim() and self.rarely(2):
            found = found[:0]
        dtypes = (torch.int32, torch.int32, torch.int16, torch.uint8, torch.float32, torch.bool)
        found = found.to(self.random.choice(dtypes)) if self.rarely(8) else found
        return self.noted("index", found)

    def listed(self, size: int) -> torch.Tensor:
        """A list of places, seldom a number or a table of them."""
        length = self.random.choice((0, 1, 2, 3, 4))
        shape = (length,) if not self.rarely(12) else self.random.choice(((), (2, length)))
        return self.places(shape, size)

    def source(self, shape: tuple[int, ...], also: tuple[tuple[int, ...], ...] = ()) -> torch.Tensor:
        """What is written: usually of ``shape``, sometimes of another one or another dtype."""
        if self.rarely(4):
            other = tuple(max(0, size + self.random.choice((-1, 0, 1))) for size in shape)
            shape = self.random.choice((other, shape[1:], (*shape, 2), (1, *shape), (1,) * len(shape), *also))
        dtype = self.random.choice(DTYPES) if self.rarely(10) else self.dtype
        return self.noted("source", self.tensor(shape, dtype))

    def noted(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        self.said.append(f"{name}={tensor.tolist()} {tuple(tensor.shape)} {tensor.dtype}")
        return tensor


Run = Callable[[torch.Tensor, Make], Any]
KINDS: dict[str, Callable[[Draw], Run]] = {}


def kind(*names: str) -> Callable[[Callable[[Draw, str], Run]], Callable[[Draw, str], Run]]:
    def register(make: Callable[[Draw, str], Run]) -> Callable[[Draw, str], Run]:
        for name in names:
            KINDS[name] = lambda draw, name=name: make(draw, name)  # type: ignore[misc]
        return make

    return register


def draw_call(seed: int, name: str, is_plain: bool = False) -> tuple[Call, Draw]:
    """The call of ``name`` that ``seed`` stands for."""
    draw = Draw(seed, is_plain)
    dense = draw.tensor(draw.shape, draw.dtype)
    run = KINDS[name](draw)
    about = f"{name} of {dense.tolist()} {tuple(dense.shape)} {dense.dtype} {draw.format}"

    def whole(make: Make) -> Any:
        source = make if draw.is_sparse_source else torch.clone
        return run(make(dense), source)

    return Call(f"{about}: {'; '.join(draw.said)}", whole), draw


def as_sparse(draw: Draw) -> Make:
    """Makes operands sparse, in the drawn format where they have its dimensions."""

    def make(dense: torch.Tensor) -> torch.Tensor:
        if not dense.dim():
            return dense.clone()
        same = dense.dim() == len(draw.shape)
        return scorch.from_torch(dense, format=draw.format if same else FORMATS.get(dense.dim(), ["coo"])[0])

    return make


# writers ---------------------------------------------------------------------------------------------


@kind("index_add", "index_add_", "index_copy", "index_copy_")
def _index_write(draw: Draw, name: str) -> Run:
    dim = draw.dim()
    index = draw.listed(draw.size(dim))
    shape = list(draw.shape)
    if -len(shape) <= dim < len(shape):
        shape[dim] = index.numel()
    source = draw.source(tuple(shape))
    options = {"alpha": draw.random.choice((2, 1, -1))} if "add" in name and draw.rarely(3) else {}
    draw.said.append(f"dim={dim} {options}")
    return lambda x, make: getattr(x, name)(dim, index, make(source), **options)


@kind("index_reduce", "index_reduce_")
def _index_reduce(draw: Draw, name: str) -> Run:
    dim = draw.dim()
    index = draw.listed(draw.size(dim))
    shape = list(draw.shape)
    if -len(shape) <= dim < len(shape):
        shape[dim] = index.numel()
    source = draw.source(tuple(shape))
    reduce = draw.random.choice(("prod", "amax", "amin", "amax", "mean" if draw.rarely(3) else "prod"))
    include = draw.random.choice((True, False))
    draw.said.append(f"dim={dim} {reduce} include_self={include}")
    return lambda x, make: getattr(x, name)(dim, index, make(source), reduce, include_self=include)


@kind("index_fill", "index_fill_")
def _index_fill(draw: Draw, name: str) -> Run:
    dim = draw.dim()
    index = draw.listed(draw.size(dim))
    value = draw.random.choice((0, 1, 2))
    draw.said.append(f"dim={dim} value={value}")
    return lambda x, make: getattr(x, name)(dim, index, value)


def _table(draw: Draw, dim: int) -> torch.Tensor:
    """An index as large as the tensor or smaller, seldom larger."""
    change = (0, 0, -1, 1) if draw.rarely(4) else (0, 0, -1)
    shape = [max(0, size + draw.random.choice(change)) for size in draw.shape]
    if -len(shape) <= dim < len(shape):
        shape[dim] = draw.random.choice((0, 1, 2, 3))
    if draw.rarely(15):
        shape = shape[1:]
    return draw.places(tuple(shape), draw.size(dim))


@kind("scatter", "scatter_", "scatter_add", "scatter_add_")
def _scatter(draw: Draw, name: str) -> Run:
    dim = draw.dim()
    index = _table(draw, dim)
    grown = tuple(size + draw.random.choice((0, 0, 1)) for size in index.shape)
    source: Any = draw.source(grown, also=(draw.shape,))
    draw.said.append(f"dim={dim}")
    if "add" not in name and draw.rarely(4):
        draw.said.append("value=2")
        return lambda x, make: getattr(x, name)(dim, index, 2)
    if "add" not in name and draw.rarely(4):
        reduce = draw.random.choice(("add", "multiply"))
        draw.said.append(reduce)
        return lambda x, make: getattr(x, name)(dim, index, make(source), reduce=reduce)
    return lambda x, make: getattr(x, name)(dim, index, make(source))


@kind("scatter_reduce", "scatter_reduce_")
def _scatter_reduce(draw: Draw, name: str) -> Run:
    dim = draw.dim()
    index = _table(draw, dim)
    source = draw.source(tuple(index.shape), also=(draw.shape,))
    reduce = draw.random.choice(("sum", "prod", "amax", "amin"))
    include = draw.random.choice((True, False))
    draw.said.append(f"dim={dim} {reduce} include_self={include}")
    return lambda x, make: getattr(x, name)(dim, index, make(source), reduce, include_self=include)


@kind("select_scatter")
def _select_scatter(draw: Draw, name: str) -> Run:
    dim = draw.dim()
    size = draw.size(dim)
    place = draw.random.randrange(-size, size) if size else 0
    place = draw.random.choice((size, -size - 1, 2**40, -(2**40))) if draw.rarely() else place
    left = list(draw.shape)
    del left[dim if -len(left) <= dim < len(left) else 0]
    source = draw.source(tuple(left))
    draw.said.append(f"dim={dim} place={place}")
    return lambda x, make: torch.select_scatter(x, make(source), dim, place)


@kind("slice_scatter")
def _slice_scatter(draw: Draw, name: str) -> Run:
    dim = draw.dim()
    size = draw.size(dim)
    ends = (None, 0, 1, 2, -1, -2, size, size + 3, -size - 2, 2**62, -(2**62))
    start, end = draw.random.choice(ends), draw.random.choice(ends)
    step = draw.random.choice((1, 1, 1, 2, 3, 0, -1, 2**62) if draw.rarely() else (1, 1, 2))
    shape = list(draw.shape)
    if -len(shape) <= dim < len(shape) and step > 0:
        shape[dim] = len(range(*slice(start, end, step).indices(size)))
    source = draw.source(tuple(shape))
    draw.said.append(f"dim={dim} {start}:{end}:{step}")
    return lambda x, make: torch.slice_scatter(x, make(source), dim, start, end, step)


@kind("diagonal_scatter")
def _diagonal_scatter(draw: Draw, name: str) -> Run:
    offset = draw.random.choice((0, 0, 1, -1, 2, -7, 2**40))
    dims = (0, 1) if not draw.rarely(3) else (draw.dim(), draw.dim())
    try:
        shape = tuple(torch.empty(draw.shape).diagonal(offset, *dims).shape)
    except (RuntimeError, IndexError):
        shape = (1,)
    source = draw.source(shape)
    draw.said.append(f"offset={offset} dims={dims}")
    return lambda x, make: torch.diagonal_scatter(x, make(source), offset, *dims)


def _key(draw: Draw) -> tuple[Any, ...]:
    """What stands between the brackets: places, slices, numbers, masks, None and ..."""
    found: list[Any] = []
    length = draw.random.choice((1, 2, 3))
    for dim, size in enumerate(draw.shape):
        if draw.rarely(4) and dim:
            break
        what = draw.random.randrange(9)
        if what < 4:
            found.append(draw.places((length,), size))
        elif what == 4:
            found.append(slice(None))
        elif what == 5:
            found.append(slice(draw.random.choice((None, 0, 1, -1)), draw.random.choice((None, 2, -1, 9))))
        elif what == 6:
            found.append(draw.random.choice((0, -1, size, -size - 1, 2**40) if draw.rarely(3) else (0, 0)))
        elif what == 7:
            found.append(draw.random.choice((None, ...)) if not any(k is ... for k in found) else None)
        else:
            wrong = size + 1 if draw.rarely() else size
            found.append(torch.rand(wrong, generator=draw.generator) < 0.5)
    draw.said.append(f"key={found}")
    return tuple(found)


@kind("setitem")
def _setitem(draw: Draw, name: str) -> Run:
    key = _key(draw)
    try:
        shape = tuple(torch.empty(draw.shape)[key].shape)
    except (RuntimeError, IndexError, TypeError):
        shape = (1,)
    source: Any = draw.source(shape) if not draw.rarely(4) else 2

    def run(x: torch.Tensor, make: Make) -> torch.Tensor:
        x[key] = source if isinstance(source, int) else make(source)
        return x

    return run


@kind("index_put", "index_put_")
def _index_put(draw: Draw, name: str) -> Run:
    count = draw.random.randrange(1, len(draw.shape) + 1)
    length = draw.random.choice((0, 1, 2, 3))
    indices = tuple(draw.places((length,), size) for size in draw.shape[:count])
    source = draw.source((length, *draw.shape[count:]), also=((),))
    accumulate = draw.random.choice((True, False))
    draw.said.append(f"accumulate={accumulate}")
    return lambda x, make: getattr(x, name)(indices, make(source), accumulate)


@kind("put", "put_")
def _put(draw: Draw, name: str) -> Run:
    index = draw.listed(torch.empty(draw.shape).numel())
    source = draw.source(tuple(index.shape))
    accumulate = draw.random.choice((True, False))
    draw.said.append(f"accumulate={accumulate}")
    return lambda x, make: getattr(x, name)(index, make(source), accumulate)


@kind("masked_scatter", "masked_scatter_", "masked_fill", "masked_fill_")
def _masked(draw: Draw, name: str) -> Run:
    shape = draw.shape if not draw.rarely() else draw.shape[1:]
    mask = draw.noted("mask", torch.rand(shape, generator=draw.generator) < 0.5)
    mask = mask.to(torch.int64) if draw.rarely(12) else mask
    if "fill" in name:
        return lambda x, make: getattr(x, name)(mask, 2)
    source = draw.source(draw.shape)
    return lambda x, make: getattr(x, name)(mask, make(source))


# readers ---------------------------------------------------------------------------------------------


@kind("index_select")
def _index_select(draw: Draw, name: str) -> Run:
    dim = draw.dim()
    index = draw.listed(draw.size(dim))
    draw.said.append(f"dim={dim}")
    return lambda x, make: torch.index_select(x, dim, index)


@kind("gather", "take_along_dim")
def _gather(draw: Draw, name: str) -> Run:
    dim = draw.dim()
    index = _table(draw, dim)
    draw.said.append(f"dim={dim}")
    if name == "gather":
        return lambda x, make: torch.gather(x, dim, index)
    return lambda x, make: torch.take_along_dim(x, index, dim)


@kind("take")
def _take(draw: Draw, name: str) -> Run:
    index = draw.listed(torch.empty(draw.shape).numel())
    return lambda x, make: torch.take(x, index)


@kind("getitem")
def _getitem(draw: Draw, name: str) -> Run:
    key = _key(draw)
    return lambda x, make: x[key]


@kind("embedding")
def _embedding(draw: Draw, name: str) -> Run:
    index = draw.listed(draw.shape[0])
    return lambda x, make: torch.nn.functional.embedding(index, x)
