"""Build recipes: what a recorded call reads, and the steps that compute its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch._src.backends.base import is_served
from scorch._src.compile.group_kernel import as_row_pattern, index_names
from scorch._src.compile.lazy_tensor import LazySparseTensor, LazyTensor, Recipe, Source, Value
from scorch._src.compile.recorder import FLOATS, PLAIN, Recorder, is_sparse_enough
from scorch._src.compiler.plan import Step
from scorch._src.notation.nodes import Access, Expr, Literal, Op
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import any_requires_grad

BuildExpression = Callable[..., Expr]


class RecipeBuilder:
    """Collect what one recorded call reads; its first sparse operand sets the sparsity pattern."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.parents: dict[str, int] = {}
        self.views: dict[str, tuple[int, ...]] = {}
        self.sizes: dict[str, int] = {}
        self.pattern: Pattern | None = None
        self.dtype: torch.dtype | None = None
        self.is_grad_enabled = torch.is_grad_enabled()
        self.requires_grad = False

    # reads -------------------------------------------------------------------------------------------

    def read_sparse(self, tensor: Any) -> Access | None:
        """Read a sparse tensor that lies on the pattern of this call."""
        if type(tensor) is LazySparseTensor:
            value = tensor._value
            if self._can_fuse(value):
                if not self._accepts_dtype(value.recipe.dtype):
                    return None
                self._set_pattern(value.pattern)
                return self._read_value(value)
            tensor = self.recorder.materialize_value(value)
        if not isinstance(tensor, SparseTensor):
            return None
        pattern = tensor.storage.pattern
        is_other = self.pattern is not None and pattern is not self.pattern
        if is_other or not self._accepts_dtype(tensor.dtype):
            return None
        self._set_pattern(pattern)
        return self._read_source(tensor, index_names(pattern), None)

    def read_rows(self, tensor: Any) -> Access | None:
        """Read, row by row, a dense result that this call's kernel computes itself."""
        if type(tensor) is not LazyTensor or not self._can_fuse(tensor._value):
            return None
        value = tensor._value
        if value.recipe.pattern_number < 0 or not self._accepts_dtype(value.recipe.dtype):
            return None
        self.pattern = value.pattern
        self.sizes.update(zip(value.recipe.access.indices, value.recipe.shape, strict=True))
        return self._read_value(value)

    def read_dense(
        self, tensor: Any, indices: Sequence[str], shape: Sequence[int] | None = None
    ) -> Access | None:
        """Read a dense tensor, broadcast to ``shape`` if one is passed."""
        if type(tensor) is LazyTensor:
            tensor = self.recorder.materialize_value(tensor._value)
        if type(tensor) not in PLAIN or tensor.layout is not torch.strided or not is_served(tensor.device):
            return None
        if not self._accepts_dtype(tensor.dtype) or tensor.dim() > len(indices):
            return None
        indices = list(indices)[len(indices) - tensor.dim() :]
        sizes = list(tensor.shape if shape is None else shape)[-tensor.dim() :] if tensor.dim() else []
        dims = tuple(dim for dim, size in enumerate(tensor.shape) if shape is None or size != 1)
        if any(tensor.shape[dim] != sizes[dim] for dim in dims):
            return None
        self.sizes.update((indices[dim], sizes[dim]) for dim in dims)
        return self._read_source(tensor, [indices[dim] for dim in dims], dims)

    def read_recorded(self, recipe: Recipe, offset: int) -> Access:
        """Read another result of this same call, ``offset`` results after its first."""
        self.pattern, self.dtype = self.recorder.patterns[recipe.pattern_number], recipe.dtype
        self.sizes.update(recipe.sizes)
        self.parents[recipe.access.tensor] = len(self.recorder.items) + offset
        self.requires_grad = self.requires_grad or recipe.requires_grad
        return recipe.access

    @property
    def has_rows(self) -> bool:
        """Whether the pattern can be iterated row by row."""
        return self.pattern is not None and as_row_pattern(self.pattern) is not None

    @property
    def is_csr(self) -> bool:
        return self.pattern is not None and as_row_pattern(self.pattern) is self.pattern

    @property
    def is_worth_fusing(self) -> bool:
        """Whether a product with a dense matrix is better not left to torch."""
        return self.has_rows and self.pattern is not None and is_sparse_enough(self.pattern)

    def _accepts_dtype(self, dtype: torch.dtype) -> bool:
        self.dtype = dtype if self.dtype is None else self.dtype
        return dtype == self.dtype and dtype in FLOATS

    def _can_fuse(self, value: Value) -> bool:
        """Whether a value that is not computed yet can be computed together with this call."""
        if value.result is not None or value.recorder is not self.recorder or value.recipe.is_layer:
            return False
        is_same_pattern = self.pattern is None or value.pattern is self.pattern
        return value.recipe.is_grad_enabled == self.is_grad_enabled and is_same_pattern

    def _set_pattern(self, pattern: Pattern | None) -> None:
        assert pattern is not None
        self.pattern = pattern
        self.sizes.update(zip(index_names(pattern), pattern.shape, strict=True))

    def _read_value(self, value: Value) -> Access:
        access = value.recipe.access
        self.parents[access.tensor] = value.number
        self.requires_grad = self.requires_grad or value.recipe.requires_grad
        return access

    def _read_source(
        self, tensor: torch.Tensor, indices: Sequence[str], dims: tuple[int, ...] | None
    ) -> Access:
        source: Source = self.recorder.source(tensor)
        name = self.recorder.name(source.number, dims)
        self.parents[name] = source.number
        self.requires_grad = self.requires_grad or any_requires_grad(tensor)
        if dims is not None:
            self.views[name] = dims
        return Access(name, tuple(indices))

    # results -----------------------------------------------------------------------------------------

    def new_target(self, indices: Sequence[str], letter: str = "T") -> Access:
        return Access(self.recorder.fresh(letter), tuple(indices))

    def inline_deferred(self, recipe: Recipe) -> tuple[Step, ...]:
        """Return the steps of a deferred product, and read all that they read."""
        self.parents.update(recipe.parents)
        self.views.update(recipe.views)
        self.sizes.update(recipe.sizes)
        self.dtype = recipe.dtype
        self.requires_grad = self.requires_grad or recipe.requires_grad
        return recipe.steps

    def build_step(
        self,
        indices: Sequence[str],
        body: Expr,
        shape: Sequence[int],
        is_sparse: bool,
        reduced: tuple[str, ...] = (),
    ) -> Recipe:
        """Build the recipe of a call that is one step: a sum over ``reduced``, or elementwise."""
        step = Step(self.new_target(indices), body, "sum", reduced)
        return self.build([step], shape, is_sparse, "sum" if reduced else "elementwise")

    def build(self, steps: Sequence[Step], shape: Sequence[int], is_sparse: bool, kind: str) -> Recipe:
        """Build the recipe of the call; its last step computes the result."""
        assert self.dtype is not None and (self.pattern is not None or kind == "deferred")
        return Recipe(
            steps[-1].target,
            tuple(shape),
            self.dtype,
            is_sparse,
            -1 if self.pattern is None else self.recorder.pattern(self.pattern),
            tuple(steps),
            self.sizes,
            self.parents,
            self.views,
            self.is_grad_enabled,
            self.is_grad_enabled and self.requires_grad,
            kind,
        )


def as_literal(argument: Any) -> Literal | None:
    """Return a Python number as a literal of the kernel; None for anything else."""
    if isinstance(argument, (int, float)) and not isinstance(argument, bool):
        return Literal(float(argument))
    return None


def record_elementwise(
    recorder: Recorder, make: BuildExpression, args: Sequence[Any], allow_sparse: bool = True
) -> Recipe | None:
    """Record ``make`` of tensors and numbers, on a pattern or on the rows of a dense result."""
    builder = RecipeBuilder(recorder)
    sparse = [position for position, argument in enumerate(args) if isinstance(argument, SparseTensor)]
    if sparse and not allow_sparse:
        return None
    accesses: dict[int, Access] = {}
    for position in sparse or range(len(args)):
        access = builder.read_sparse(args[position]) if sparse else builder.read_rows(args[position])
        if access is not None:
            accesses[position] = access
        elif sparse:
            return None
    if not accesses:
        return None
    first = next(iter(accesses))
    indices, shape = accesses[first].indices, tuple(args[first].shape)
    if any(access.indices != indices or tuple(args[p].shape) != shape for p, access in accesses.items()):
        return None
    operands: list[Expr] = []
    for position, argument in enumerate(args):
        operand = (
            accesses.get(position) or as_literal(argument) or builder.read_dense(argument, indices, shape)
        )
        if operand is None:
            return None
        operands.append(operand)
    return builder.build_step(indices, make(*operands), shape, bool(sparse))


def build_operator(name: str) -> BuildExpression:
    """Return a function that builds an expression with an operator of index notation."""
    return lambda *operands: Op(name, operands)
