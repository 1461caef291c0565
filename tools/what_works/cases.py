"""Calls to try: torch's samples of an operator with most of the values set to zero."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from tools.what_works.operators import PRODUCTS, family

Item = TypeVar("Item")
MOST_SAMPLES = 200  # that are looked at
MOST_ELEMENTS = 20_000  # of the tensors of a sample that is used
DENSITY = 0.35


@dataclass(frozen=True)
class Case:
    """A function, its arguments as a list, and which of them are made sparse."""

    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    spec: TreeSpec
    sparse: tuple[int, ...]
    family: str = ""

    def copied(self, change: Callable[[torch.Tensor], Any] | None = None) -> list[Any]:
        """The arguments, of which the sparse ones are changed."""
        copies = [value.clone() if isinstance(value, torch.Tensor) else value for value in self.leaves]
        for place in self.sparse if change is not None else ():
            copies[place] = change(copies[place])
        return copies

    def on(self, device: str) -> Case:
        """The same call with its tensors on ``device``."""
        moved = [value.to(device) if isinstance(value, torch.Tensor) else value for value in self.leaves]
        return replace(self, leaves=tuple(moved))

    def call(self, leaves: Sequence[Any], seed: int = 7) -> Any:
        args, kwargs = tree_unflatten(list(leaves), self.spec)
        _seed(seed)
        return self.function(*args, **kwargs)


@dataclass(frozen=True)
class Sample:
    """The arguments of a call that torch tests, and the places of the tensors that hold data."""

    info: Any
    leaves: list[Any]
    spec: TreeSpec
    places: list[int]

    def case(self, variant: str) -> Case:
        """The call with most values of the first tensor, or of all tensors, set to zero."""
        sparse = self.places if variant == "all" else self.places[:1]
        kind = family(self.info)
        generator = torch.Generator().manual_seed(1234)
        values = list(self.leaves)
        for place in sparse:
            values[place] = _thinned(values[place], generator, kind == PRODUCTS)
        return Case(self.info.op, tuple(values), self.spec, tuple(sparse), kind)


def samples_of(infos: Sequence[Any], dtype: torch.dtype) -> list[list[Sample]]:
    """The samples of each OpInfo that has the dtype."""
    return [list(_samples(info, dtype)) for info in infos if info.supports_dtype(dtype, "cpu")]


def cases(
    samples: Sequence[list[Sample]], variant: str, count: int, least_order: int, turn: int
) -> list[Case]:
    """Up to ``count`` calls of each OpInfo, others at every ``turn``.

    They are of tensors with ``least_order`` dimensions, where there are such.
    """
    found: list[Case] = []
    for given in samples:
        fitting = [sample for sample in given if variant == "first" or len(sample.places) > 1]
        wanted = [sample for sample in fitting if sample.leaves[sample.places[0]].dim() >= least_order]
        found += [sample.case(variant) for sample in _spread(wanted or fitting, count, turn)]
    return found


def _spread(items: list[Item], count: int, turn: int) -> list[Item]:
    """``count`` of them from beginning to end."""
    size = len(items)
    if size <= count:
        return items
    return [items[(7 * turn + n * size // count) % size] for n in range(count)]


def _samples(info: Any, dtype: torch.dtype) -> Iterator[Sample]:
    given = _drawn(info, dtype)
    is_data_known = dtype.is_floating_point or not info.supports_dtype(torch.float32, "cpu")
    twins = [None] * len(given) if is_data_known else _drawn(info, torch.float32)
    for number, (leaves, spec) in enumerate(given):
        tensors = [place for place, value in enumerate(leaves) if isinstance(value, torch.Tensor)]
        places = [place for place in tensors if leaves[place].dtype == dtype and leaves[place].dim() > 0]
        twin = twins[number] if number < len(twins) else None
        if not is_data_known and places:  # whole numbers may be places: only what can be a float too is data
            same = len(twins) == len(given) and twin is not None and twin[1] == spec
            places = [p for p in places if _is_float(twin[0][p])] if same and twin else places[:1]
        is_plain = all(leaves[place].layout == torch.strided for place in tensors)
        if places and places[0] == tensors[0] and is_plain:
            yield Sample(info, leaves, spec, places)


def _seed(seed: int) -> None:
    """As torch.manual_seed, which asks for accelerators each time."""
    torch.default_generator.manual_seed(seed)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _drawn(info: Any, dtype: torch.dtype) -> list[tuple[list[Any], TreeSpec]]:
    _seed(0)
    found = []
    samples = info.sample_inputs("cpu", dtype, requires_grad=False)
    for sample in itertools.islice(samples, MOST_SAMPLES):
        kwargs = {name: value for name, value in sample.kwargs.items() if name != "memory_format"}
        for input in _shaped(sample.input, type(info).__name__ == "UnaryUfuncInfo"):
            leaves, spec = tree_flatten(((input, *sample.args), kwargs))
            sizes = [value.numel() for value in leaves if isinstance(value, torch.Tensor)]
            if sum(sizes) <= MOST_ELEMENTS:
                found.append((leaves, spec))
    return found


def _shaped(input: Any, is_unary: bool) -> list[Any]:
    """The input of a sample; functions of each element have samples of few shapes, so also in others."""
    if not is_unary or not isinstance(input, torch.Tensor) or input.numel() < 20 or input.dim() > 2:
        return [input]
    few = input.reshape(-1)[:20]
    return [input, few, few.reshape(4, 5), few.reshape(2, 2, 5)]


def _thinned(values: torch.Tensor, generator: torch.Generator, keeps_diagonal: bool) -> torch.Tensor:
    """Most values set to zero; of matrices to be solved with not the diagonal."""
    kept = torch.rand(values.shape, generator=generator) < DENSITY
    if keeps_diagonal and values.dim() > 1:
        kept.diagonal(dim1=-2, dim2=-1).fill_(True)
    return torch.where(kept, values.detach(), torch.zeros_like(values))
