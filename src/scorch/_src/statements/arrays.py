"""What statements are run on: arrays with the patterns of sparse tensors, and what is known of one run."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from scorch._src.notation.indexing import parse
from scorch._src.notation.nodes import Assign
from scorch._src.notation.trees import accesses
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import learned_of, sparse_of, values_of
from scorch._src.tensor.sparse_tensor import SparseTensor

Result = SparseTensor | torch.Tensor
Run = Callable[..., Result]
Source = weakref.ref[torch.Tensor] | None

RUN: list[Run] = []  # ``evaluate``, which stands above this file


@dataclass(frozen=True)
class Piece:
    """An operand or a result: the values of the entries of ``pattern``, or a dense tensor if it is None.

    ``source`` is what is learned of an operand: the sparse tensor itself, or values that it was made of.
    """

    array: torch.Tensor
    pattern: Pattern | None = None
    source: Source = None

    @staticmethod
    def of(tensor: Any) -> Piece:
        if isinstance(tensor, SparseTensor):
            values = values_of(tensor, in_statement=True)
            return Piece(values, tensor.storage.pattern, weakref.ref(learned_of(tensor)))
        return Piece(tensor)

    def tensor(self) -> Result:
        """What users hold, connected to the array."""
        return self.array if self.pattern is None else sparse_of(self.pattern, self.array)


@dataclass
class Call:
    """One run of a statement: what it is, and where the result's pattern is put once it is known."""

    text: str
    names: tuple[str, ...]
    patterns: tuple[Pattern | None, ...]
    format: Any
    run: Run
    sparse_grad: bool = False
    sources: tuple[Source, ...] = ()
    pattern: Pattern | None = field(default=None)

    @property
    def assign(self) -> Assign:
        return parse(self.text).assign

    def shape(self, arrays: Sequence[torch.Tensor], place: int) -> tuple[int, ...]:
        """The shape of an operand."""
        pattern = self.patterns[place]
        return tuple(arrays[place].shape) if pattern is None else pattern.shape

    def sizes(self, arrays: Sequence[torch.Tensor]) -> dict[str, int]:
        """The size of every index."""
        found: dict[str, int] = {}
        for access in accesses(self.assign.value):
            shape = self.shape(arrays, self.names.index(access.tensor))
            found.update(zip(access.indices, shape, strict=True))
        return found


Compute = Callable[..., Piece]  # ``statements.autograd.computed``: a statement on pieces, connected to them


def forward_of(call: Call, arrays: Sequence[torch.Tensor]) -> torch.Tensor:
    """The array of the result, computed from plain tensors; its pattern is put into ``call``."""
    given = [
        _plain(array) if pattern is None else SparseTensor(Storage(pattern, _plain(array).contiguous()))
        for array, pattern in zip(arrays, call.patterns, strict=True)
    ]
    found = call.run(*given)
    if isinstance(found, SparseTensor):
        call.pattern = found.storage.pattern
        return found.storage.values
    return found


def _plain(array: torch.Tensor) -> torch.Tensor:
    array = array.detach()
    return array.resolve_conj().resolve_neg() if array.is_conj() or array.is_neg() else array


def run_text(text: str, names: tuple[str, ...], format: Any) -> Run:
    """What computes a statement from its text."""
    evaluate = RUN[0]

    def run(*tensors: Any) -> Result:
        return evaluate(text, format=format, **dict(zip(names, tensors, strict=True)))

    return run


def fresh(name: str, names: Sequence[str]) -> str:
    """``name``, made longer until it is none of ``names``."""
    while name in names:
        name += "_"
    return name


@functools.lru_cache(maxsize=1024)
def tensors_of(text: str) -> tuple[str, ...]:
    """The tensors that a statement reads."""
    return tuple(dict.fromkeys(access.tensor for access in accesses(parse(text).assign.value)))


def index_names(text: str) -> frozenset[str]:
    """The indices of a statement."""
    return _indices_of(parse(text).assign)


@functools.lru_cache(maxsize=1024)
def _indices_of(assign: Assign) -> frozenset[str]:
    found = set(assign.target.indices)
    for access in accesses(assign.value):
        found |= set(access.indices)
    return frozenset(found)
