"""The largest gradients outside a sparsity pattern, which show where a sparse tensor should grow.

The gradient of a sparse tensor lives on its sparsity pattern. Elsewhere it is a statement without the mask of
the pattern; here it is computed in tiles of rows, of which only the largest entries are kept, so that there
is never a dense matrix.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import torch

from scorch._src.dataclass import dataclass
from scorch._src.notation.nodes import Access, Assign, Expr
from scorch._src.notation.show import show
from scorch._src.notation.trees import accesses, substitute
from scorch._src.statements.evaluate import evaluate
from scorch._src.statements.formula import Call
from scorch._src.statements.gradients import identity
from scorch._src.storage.coordinates import coordinates_of
from scorch._src.tensor.autograd import WATCHED, gradient_target, sparse_of
from scorch._src.tensor.entries import entries_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, CallError, InPlaceError, OperandError, is_integer

TILE_ELEMENTS = 1 << 20  # of the gradient, computed at a time, if a row has no more

Span = tuple[int, int]  # start and length of a part of a dimension


@dataclass(frozen=True)
class _Use:
    """One use of the tensor in a statement, as seen by its backward."""

    call: Call
    arrays: tuple[torch.Tensor, ...]
    place: int
    incoming: torch.Tensor
    versions: tuple[int, ...]


@dataclass
class grad_topk:  # noqa: N801 - it is used like a function
    """Find the ``k`` largest gradients of a sparse tensor outside its sparsity pattern.

    Inside the ``with`` block, the gradients of all backward passes through ``einsum``, ``evaluate``,
    ``matmul`` and ``linear`` are summed; other uses of the tensor raise. Afterwards ``indices`` has one
    column for each entry found and ``values`` its gradient, in order of decreasing magnitude (ties: in the
    order of the tensor). Memory is that of the saved operands, one tile of rows and ``k`` entries. RigL
    grows weights with it.

    Args:
        tensor: a sparse tensor that requires a gradient, such as ``layer.weight``.
        k: the number of entries; fewer are found if the tensor has fewer implicit zeros.

    Raises:
        CallError: no backward pass reached the tensor before the block ended.

    Example:

        >>> import torch, scorch
        >>> W = scorch.from_torch(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), format="csr").requires_grad_()
        >>> with scorch.grad_topk(W, k=1) as grown:
        ...     torch.nn.functional.linear(torch.tensor([1.0, 2.0]), W).sum().backward()
        >>> grown.indices, grown.values
        (tensor([[0],
                [1]]), tensor([2.]))
    """

    tensor: SparseTensor
    k: int
    indices: torch.Tensor = field(init=False)
    values: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.tensor, SparseTensor):
            raise OperandError(f"grad_topk expected a SparseTensor, but got {type(self.tensor).__name__}")
        if not self.tensor.requires_grad:
            raise OperandError("the tensor does not require grad; call requires_grad_() first")
        if not is_integer(self.k, 0):
            raise ArgumentError(f"k must be a non-negative integer, but got {self.k!r}")
        self._uses: list[_Use] = []

    def __enter__(self) -> grad_topk:
        if id(gradient_target(self.tensor)) in WATCHED:
            raise CallError("grad_topk is already active for this tensor")
        self._uses = []
        WATCHED[id(gradient_target(self.tensor))] = self._record_use
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        del WATCHED[id(gradient_target(self.tensor))]
        uses, self._uses = self._uses, []
        if kind is None:
            with torch.no_grad():
                self.indices, self.values = _largest(self.tensor, self.k, uses)

    def _record_use(
        self, call: Call, arrays: Sequence[torch.Tensor], place: int, incoming: torch.Tensor
    ) -> None:
        saved = tuple(array.detach() for array in arrays)
        versions = tuple(array._version for array in (*saved, incoming))
        self._uses.append(_Use(call, saved, place, incoming, versions))


def _largest(tensor: SparseTensor, k: int, uses: Sequence[_Use]) -> tuple[torch.Tensor, torch.Tensor]:
    shape = tuple(tensor.shape)
    if not uses:
        raise CallError(
            "no backward pass through a product with the tensor was recorded since grad_topk began (in RigL: "
            "since the last step()). In a model that torch.compile has captured as one graph, only products "
            "with the tensor itself are recorded, not with what is computed from it: run this step uncompiled"
        )
    for use in uses:
        _check_unchanged(use)
    stored = entries_of(tensor).keys
    best = _LargestEntries(k, tensor.dtype, stored.device)
    for start, spans in _tiles(shape):
        tile = torch.zeros([length for _, length in spans], dtype=tensor.dtype, device=stored.device)
        for use in uses:
            _add_gradient(tile, use, spans)
        flat = tile.reshape(-1)
        begin, end = torch.searchsorted(
            stored, torch.tensor([start, start + flat.numel()], device=stored.device)
        ).tolist()
        best.add(start, flat, stored[begin:end] - start)
    keys, values = best.sorted_entries()
    return torch.stack(coordinates_of(keys, shape)) if shape else keys.new_zeros(0, 0), values


def _check_unchanged(use: _Use) -> None:
    """Raise if a tensor that the gradient is computed from was changed since the backward pass."""
    formula = use.call.formula
    rules = formula.whole_gradients(use.place)
    names_read = {access.tensor for rule in rules for access in accesses(rule.statement.value)}
    operands = zip((*formula.names, formula.incoming), (*use.arrays, use.incoming), use.versions, strict=True)
    if any(name in names_read and array._version != version for name, array, version in operands):
        raise InPlaceError(
            "a tensor needed for the gradient was modified in place before the with block of grad_topk "
            "ended; "
            "call optimizer.step() after the block"
        )


def _tiles(shape: tuple[int, ...]) -> Iterator[tuple[int, tuple[Span, ...]]]:
    """Yield tiles of at most ``TILE_ELEMENTS`` consecutive elements: where each begins, and its spans."""
    if math.prod(shape) == 0:
        return
    inner = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    cut = next((dim for dim in range(len(shape)) if inner[dim] <= TILE_ELEMENTS), len(shape) - 1)
    rows = max(1, TILE_ELEMENTS // inner[cut]) if shape else 1
    for outer in itertools.product(*map(range, shape[:cut])):
        fixed: list[Span] = [(coordinate, 1) for coordinate in outer]
        rest: list[Span] = [(0, size) for size in shape[cut + 1 :]]
        start = sum(coordinate * size for coordinate, size in zip(outer, inner, strict=False))
        for begin in range(0, shape[cut], rows) if shape else [0]:
            current: list[Span] = [(begin, min(rows, shape[cut] - begin))] if shape else []
            yield start + begin * inner[cut] if shape else 0, (*fixed, *current, *rest)


class _LargestEntries:
    """The entries of largest magnitude so far; entries are added in the order of their keys."""

    def __init__(self, k: int, dtype: torch.dtype, device: torch.device) -> None:
        self.k = k
        self.keys = torch.zeros(0, dtype=torch.int64, device=device)
        self.values = torch.zeros(0, dtype=dtype, device=device)
        self.least = -1.0  # later entries must be larger

    def add(self, start: int, values: torch.Tensor, stored: torch.Tensor) -> None:
        """Add ``values``, whose keys begin with ``start``, except those that are ``stored``."""
        if not self.k:
            return
        magnitudes = values.abs()
        magnitudes[stored] = -1.0
        candidates = (magnitudes > self.least).nonzero().reshape(-1)  # nan is not larger, so it is left out
        self.keys = torch.cat([self.keys, candidates + start])
        self.values = torch.cat([self.values, values[candidates]])
        if self.keys.numel() >= self.k:
            magnitudes = self.values.abs()
            self.least = float(torch.topk(magnitudes, self.k, sorted=False).values.min())
            self._keep((magnitudes >= self.least).nonzero().reshape(-1))
            self._keep(self._order()[: self.k].sort().values)

    def sorted_entries(self) -> tuple[torch.Tensor, torch.Tensor]:
        order = self._order()
        return self.keys[order], self.values[order]

    def _order(self) -> torch.Tensor:
        """Sort by magnitude, largest first; of equals the one that came first."""
        return torch.sort(self.values.abs(), descending=True, stable=True).indices

    def _keep(self, selected: torch.Tensor) -> None:
        self.keys, self.values = self.keys[selected], self.values[selected]


# the gradient of a tile ------------------------------------------------------------------------------


def _add_gradient(tile: torch.Tensor, use: _Use, spans: Sequence[Span]) -> None:
    """Add the gradient of one use to the tile with these ``spans``."""
    call, formula = use.call, use.call.formula
    sizes = call.sizes(use.arrays)
    given: dict[str, torch.Tensor] = {formula.incoming: use.incoming}
    for name, array, pattern in zip(formula.names, use.arrays, call.patterns, strict=True):
        array = array.conj() if array.is_complex() else array
        given[name] = array if pattern is None else sparse_of(pattern, array)
    for rule in formula.whole_gradients(use.place):
        for name, index in rule.diagonals:
            given[name] = SparseTensor(identity(sizes[index], tile))
        span_of_index = dict(
            zip(rule.statement.target.indices, (spans[dim] for dim in rule.dims), strict=True)
        )
        statement, tensors = _narrow(rule.statement, given, span_of_index)
        term = evaluate(show(statement), format="dense", **tensors)
        assert isinstance(term, torch.Tensor)
        if rule.repeated:
            term = term * math.prod(sizes[index] for index in rule.repeated)
        for dim in range(tile.dim()):
            if dim not in rule.dims:
                term = term.unsqueeze(dim)
        tile += term.real if term.is_complex() and not tile.is_complex() else term


def _narrow(
    statement: Assign, given: Mapping[str, torch.Tensor], spans: Mapping[str, Span]
) -> tuple[Assign, dict[str, Any]]:
    """Restrict a statement to ``spans`` of its free indices, and its tensors to the parts that it reads."""
    tensors: dict[str, Any] = {}
    renamed: dict[Access, Expr] = {}
    for access in accesses(statement.value):
        tensor = given[access.tensor]
        for dim, index in enumerate(access.indices):
            if index in spans and spans[index] != (0, tensor.shape[dim]):
                tensor = tensor.narrow(dim, *spans[index])
        name = f"{access.tensor}_{len(renamed)}"
        renamed[access] = Access(name, access.indices)
        tensors[name] = tensor
    return Assign(statement.target, substitute(statement.value, renamed)), tensors
