"""Sums and products of two sparse tensors whose sparsity patterns are new at every call.

Nothing that is cached with a pattern answers: this is what ``A + B`` costs the first time. torch adds tensors
of three dimensions and more as lists of entries, which it then sorts.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.cases import OURS, Case, Prepare
from benchmarks.gpu.tensors import Tensor, made_up
from benchmarks.gpu.timing import Call

Pair = tuple[Tensor, Tensor]


def pairs(device: str, tiny: bool) -> Iterator[Pair]:
    """Tensors of about a million entries: a matrix, one with few long rows, and two of three modes."""
    kinds: dict[str, tuple[tuple[int, ...], float]] = {
        "matrix": ((200_000, 200_000), 1.0),
        "skewed matrix": ((200_000, 200_000), 4.0),
        "3 modes": ((4_000, 3_000, 2_000), 1.0),
        "fuller, 3 modes": ((400, 300, 200), 1.0),
    }
    for name, (shape, power) in kinds.items():
        shape, entries = ((9, 8, 7)[: len(shape)], 60) if tiny else (shape, 1_000_000)
        first, second = (made_up(f"{name} {n}", device, shape, entries, power) for n in (1, 2))
        first.name = name
        yield first, second


def _keys(T: Tensor) -> torch.Tensor:
    """Number entries in their order."""
    key = T.places[0]
    for place, size in zip(T.places[1:], T.shape[1:], strict=True):
        key = key * size + place
    return key


def _values(first: Tensor, second: Tensor, is_sum: bool) -> torch.Tensor:
    """The values of the result, in the order of its entries."""
    joined, place = torch.cat([_keys(first), _keys(second)]).unique(return_inverse=True)
    dense = torch.zeros(2, joined.numel(), dtype=torch.float64, device=joined.device)
    here = torch.zeros(2, joined.numel(), dtype=torch.bool, device=joined.device)
    for row, (T, at) in enumerate(zip((first, second), place.split([first.nnz, second.nnz]), strict=True)):
        dense[row, at], here[row, at] = T.values.double(), True
    return dense.sum(0) if is_sum else dense.prod(0)[here.all(0)]


def _ours(pair: Pair, combine: Callable[..., Any]) -> Prepare:
    form = "csr" if len(pair[0].shape) == 2 else "csf"

    def fresh() -> Any:
        return [T.scorch(form) for T in pair]

    return lambda: Call(lambda given: combine(*given).values(), fresh)


def _by_torch(pair: Pair, combine: Callable[..., Any]) -> Prepare:
    def fresh() -> Any:
        return [torch.sparse_coo_tensor(T.places, T.values, T.shape, is_coalesced=True) for T in pair]

    return lambda: Call(lambda given: combine(*given).coalesce().values(), fresh)


def union(device: str, directory: Path | None, tiny: bool) -> Iterator[Case]:
    """Coordinates that either operand has, and those that both have."""
    del directory
    for pair in pairs(device, tiny):
        for label, combine in (("A + B", operator.add), ("A * B", operator.mul)):
            ways = {OURS: _ours(pair, combine), "torch COO": _by_torch(pair, combine)}

            def reference(pair: Pair = pair, is_sum: bool = combine is operator.add) -> torch.Tensor:
                return _values(*pair, is_sum)

            moved = 4.0 * (1 + len(pair[0].shape)) * 2 * sum(T.nnz for T in pair)
            yield Case("union", f"{label}, new patterns", pair[0].name, ways, reference, bytes=moved)


SECTIONS = {"union": union}
