"""The tensors that a recorded call reads, and what it gives: of this rules are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch._src.backends.base import is_served
from scorch._src.compile.group_arrays import letters_of, rows_of
from scorch._src.compile.lazy_tensor import Later, Recipe, Source, SparseLater, Value
from scorch._src.compile.recorder import PLAIN, Recorder, is_sparse_enough
from scorch._src.compiler.plan import Step
from scorch._src.notation.nodes import Access, Expr, Literal, Op
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import any_requires_grad

FLOATS = (torch.float32, torch.float64)

Make = Callable[..., Expr]


class Reading:
    """The tensors that one recorded call reads; the first sparse one decides the pattern that is walked."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.parents: dict[str, int] = {}
        self.views: dict[str, tuple[int, ...]] = {}
        self.sizes: dict[str, int] = {}
        self.pattern: Pattern | None = None
        self.dtype: torch.dtype | None = None
        self.learns = torch.is_grad_enabled()
        self.requires_grad = False

    # what is read ------------------------------------------------------------------------------------

    def sparse(self, tensor: Any) -> Access | None:
        """A sparse tensor on the pattern of this call."""
        if type(tensor) is SparseLater:
            value = tensor._value
            if self._joins(value):
                if not self._takes(value.recipe.dtype):
                    return None
                self._walk(value.walked)
                return self._value(value)
            tensor = self.recorder.now(value)
        if not isinstance(tensor, SparseTensor):
            return None
        pattern = tensor.storage.pattern
        if (self.pattern is not None and pattern is not self.pattern) or not self._takes(tensor.dtype):
            return None
        self._walk(pattern)
        return self._read(tensor, letters_of(pattern), None)

    def rows(self, tensor: Any) -> Access | None:
        """A dense result of which this call reads the row that it computes itself."""
        if type(tensor) is not Later or not self._joins(tensor._value):
            return None
        value = tensor._value
        if value.recipe.walked < 0 or not self._takes(value.recipe.dtype):
            return None
        self.pattern = value.walked
        self.sizes.update(zip(value.recipe.access.indices, value.recipe.shape, strict=True))
        return self._value(value)

    def dense(self, tensor: Any, indices: Sequence[str], shape: Sequence[int] | None = None) -> Access | None:
        """A dense tensor, broadcast to ``shape`` if there is one."""
        if type(tensor) is Later:
            tensor = self.recorder.now(tensor._value)
        if type(tensor) not in PLAIN or tensor.layout is not torch.strided or not is_served(tensor.device):
            return None
        if not self._takes(tensor.dtype) or tensor.dim() > len(indices):
            return None
        indices = list(indices)[len(indices) - tensor.dim() :]
        wanted = list(tensor.shape if shape is None else shape)[-tensor.dim() :] if tensor.dim() else []
        kept = tuple(dim for dim, size in enumerate(tensor.shape) if shape is None or size != 1)
        if any(tensor.shape[dim] != wanted[dim] for dim in kept):
            return None
        self.sizes.update((indices[dim], wanted[dim]) for dim in kept)
        return self._read(tensor, [indices[dim] for dim in kept], kept)

    def part(self, recipe: Recipe, number: int) -> Access:
        """A part of this call, ``number`` parts after the first."""
        self.pattern, self.dtype = self.recorder.patterns[recipe.walked], recipe.dtype
        self.sizes.update(recipe.sizes)
        self.parents[recipe.access.tensor] = len(self.recorder.items) + number
        self.requires_grad = self.requires_grad or recipe.requires_grad
        return recipe.access

    @property
    def has_rows(self) -> bool:
        """Whether the pattern has rows to walk."""
        return self.pattern is not None and rows_of(self.pattern) is not None

    @property
    def is_csr(self) -> bool:
        return self.pattern is not None and rows_of(self.pattern) is self.pattern

    @property
    def is_worth(self) -> bool:
        """Whether a product with a dense matrix is better not left to torch."""
        return self.has_rows and self.pattern is not None and is_sparse_enough(self.pattern)

    def _takes(self, dtype: torch.dtype) -> bool:
        self.dtype = dtype if self.dtype is None else self.dtype
        return dtype == self.dtype and dtype in FLOATS

    def _joins(self, value: Value) -> bool:
        """Whether a value that is not computed yet can be computed together with this call."""
        if value.result is not None or value.recorder is not self.recorder:
            return False
        same = self.pattern is None or value.walked is self.pattern
        return value.recipe.learns == self.learns and same

    def _walk(self, pattern: Pattern | None) -> None:
        assert pattern is not None
        self.pattern = pattern
        self.sizes.update(zip(letters_of(pattern), pattern.shape, strict=True))

    def _value(self, value: Value) -> Access:
        access = value.recipe.access
        self.parents[access.tensor] = value.number
        self.requires_grad = self.requires_grad or value.recipe.requires_grad
        return access

    def _read(self, tensor: torch.Tensor, indices: Sequence[str], dims: tuple[int, ...] | None) -> Access:
        source: Source = self.recorder.source(tensor)
        name = self.recorder.name(source.number, dims)
        self.parents[name] = source.number
        self.requires_grad = self.requires_grad or any_requires_grad(tensor)
        if dims is not None:
            self.views[name] = dims
        return Access(name, tuple(indices))

    # what is given -----------------------------------------------------------------------------------

    def target(self, indices: Sequence[str], letter: str = "T") -> Access:
        return Access(self.recorder.fresh(letter), tuple(indices))

    def waiting(self, recipe: Recipe) -> tuple[Step, ...]:
        """The steps of a product that waits, with all that they read."""
        self.parents.update(recipe.parents)
        self.views.update(recipe.views)
        self.sizes.update(recipe.sizes)
        self.dtype = recipe.dtype
        self.requires_grad = self.requires_grad or recipe.requires_grad
        return recipe.steps

    def waits(self, step: Step, shape: Sequence[int]) -> Recipe:
        """A result that is not computed before it is known what for."""
        return self._recipe([step], shape, False, -1, "waits")

    def gives(self, steps: Sequence[Step], shape: Sequence[int], is_sparse: bool, kind: str) -> Recipe:
        """The result of the call; the last step gives it."""
        assert self.pattern is not None
        return self._recipe(steps, shape, is_sparse, self.recorder.pattern(self.pattern), kind)

    def _recipe(
        self, steps: Sequence[Step], shape: Sequence[int], is_sparse: bool, walked: int, kind: str
    ) -> Recipe:
        assert self.dtype is not None
        needs = self.learns and self.requires_grad
        return Recipe(
            steps[-1].target,
            tuple(shape),
            self.dtype,
            is_sparse,
            walked,
            tuple(steps),
            self.sizes,
            self.parents,
            self.views,
            self.learns,
            needs,
            kind,
        )


def number_of(argument: Any) -> Literal | None:
    """A number of Python's, which goes into the kernel."""
    if isinstance(argument, (int, float)) and not isinstance(argument, bool):
        return Literal(float(argument))
    return None


def elementwise(
    recorder: Recorder, make: Make, args: Sequence[Any], sparse: bool, dense: bool
) -> Recipe | None:
    """``make`` of tensors and numbers: on a pattern (if ``sparse`` allows), or on rows of a dense result."""
    reading = Reading(recorder)
    found: dict[int, Access] = {}
    is_sparse = False
    for place, argument in enumerate(args):
        if isinstance(argument, SparseTensor):
            access = reading.sparse(argument) if sparse else None
            if access is None:
                return None
            found[place], is_sparse = access, True
    if not is_sparse:
        if not dense:
            return None
        for place, argument in enumerate(args):
            access = reading.rows(argument)
            if access is not None and found and access.indices != next(iter(found.values())).indices:
                return None
            if access is not None:
                found[place] = access
        if not found:
            return None
    first = next(iter(found))
    indices, shape = found[first].indices, tuple(args[first].shape)
    if any(tuple(args[place].shape) != shape for place in found):
        return None
    parts: list[Expr] = []
    for place, argument in enumerate(args):
        part = found.get(place) or number_of(argument) or reading.dense(argument, indices, shape)
        if part is None:
            return None
        parts.append(part)
    step = Step(reading.target(indices), make(*parts), "sum", ())
    return reading.gives([step], shape, is_sparse, "elementwise")


def operator(name: str) -> Make:
    """What makes an expression with an operator of index notation."""
    return lambda *parts: Op(name, parts)
