"""Run any step over any formats by torch's own operations, where there is no compiler.

The points at which the body can differ from zero (``compiler.lattice``) are joined from the entries of sparse
operands (``relations``); the body is computed for all of them at once, and what belongs to one place of the
result is added up there. Indices that only dense operands have stay dimensions of the values, so that a
product with a dense matrix picks its rows and not its elements.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import torch

from scorch._src.backends.by_torch.rows import add_rows
from scorch._src.backends.sort_entries import distinct
from scorch._src.compiler import lattice
from scorch._src.compiler.lattice import EVERYWHERE, Support
from scorch._src.compiler.plan import Step
from scorch._src.compiler.typing import argument_type, dtype_of_type, type_of, type_of_dtype
from scorch._src.dataclass import dataclass
from scorch._src.devices import HOST
from scorch._src.engine.by_torch import relations
from scorch._src.engine.by_torch.relations import Relation
from scorch._src.loops.operators import OPERATORS
from scorch._src.loops.types import Type
from scorch._src.notation.nodes import Access, Expr, Literal, Op
from scorch._src.storage.coordinates import numbered_entries
from scorch._src.storage.storage import Storage

MAX_VALUES_PER_CHUNK = 1 << 22

Tensor = Storage | torch.Tensor

# For each sparse access the entry at each point, None: the same; and whether there is one, None: everywhere.
Origins = Mapping[Access, tuple[torch.Tensor | None, torch.Tensor | None]]


@dataclass(frozen=True)
class Places:
    """A result: ``values`` at these coordinates, each of which occurs once.

    ``trailing`` are indices of the target that are dimensions of ``values``, after the first one.
    """

    columns: Mapping[str, torch.Tensor]
    values: torch.Tensor
    trailing: tuple[str, ...]


class Statement:
    """A step on its tensors, the sparse ones as lists of entries."""

    def __init__(self, step: Step, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> None:
        self.step, self.sizes = step, sizes
        self.device = next((tensor.device for tensor in tensors.values()), HOST)
        self.types: dict[str, Type] = {}
        self.dense: dict[Access, torch.Tensor] = {}
        self.sparse: dict[Access, Storage] = {}
        self.values: dict[Access, torch.Tensor] = {}
        for access in step.accesses:
            tensor = tensors[access.tensor]
            values = tensor.values if isinstance(tensor, Storage) else tensor
            self.types[access.tensor] = type_of_dtype(values.dtype)
            wide = dtype_of_type(self.types[access.tensor].computes_in)
            if isinstance(tensor, Storage):
                self.sparse[access] = tensor
                self.values[access] = tensor.values.detach().to(wide)
            else:
                self.dense[access] = tensor.detach().resolve_conj().resolve_neg().to(wide)
        joined = {index for access in self.sparse for index in access.indices}
        order = tuple(dict.fromkeys(step.indices))
        self.joined = tuple(index for index in order if index in joined)
        self.trailing = tuple(index for index in order if index not in joined)

    def use(self, columns: relations.Columns, origins: Origins, count: int) -> None:
        """Compute at points that are known: their coordinates, and the entries of each access."""
        self.points = Relation(columns, {}, count, self.device)
        self.entries_at_points = origins

    # where ------------------------------------------------------------------------------------------------

    @functools.cached_property
    def stored(self) -> dict[Access, Relation]:
        """The entries of each sparse access."""
        return {
            access: Relation.of(access, access.indices, *numbered_entries(storage.pattern))
            for access, storage in self.sparse.items()
        }

    def support(self, expr: Expr) -> Support:
        """Return where ``expr`` can differ from zero."""
        return lattice.support(expr, lambda a: lattice.stored(a) if a in self.sparse else EVERYWHERE)

    @functools.cached_property
    def points(self) -> Relation:
        """The points at which the body is computed, over the indices of sparse operands."""
        parts = []
        for clause in self.support(self.step.body):
            part = relations.join_all([self.stored[access] for access in clause], self.sizes, self.device)
            for index in self.joined:
                if index not in part.columns:
                    part = part.crossed(index, self.sizes[index])
            parts.append(part)
        if len(parts) == 1:
            return parts[0]
        if not parts:
            nothing = torch.zeros(0, dtype=torch.int64, device=self.device)
            return Relation(dict.fromkeys(self.joined, nothing), {}, 0, self.device)
        return relations.union(parts, self.joined, self.sizes)

    @functools.cached_property
    def entries_at_points(self) -> Origins:
        """The entry of each sparse access at each point, and whether there is one."""
        known: dict[Access, tuple[torch.Tensor | None, torch.Tensor | None]] = {}
        for access, relation in self.stored.items():
            origin = self.points.origins.get(access)
            if origin is not None:
                known[access] = origin, None
            else:
                row, is_there = relations.find(self.points.columns, self.points.count, relation, self.sizes)
                entry = relation.origins[access]
                known[access] = (entry[row] if entry.numel() else row), is_there
        return known

    # what -------------------------------------------------------------------------------------------------

    def value(self, expr: Expr, rows: slice) -> torch.Tensor:
        """Evaluate ``expr`` at some of the points: a dimension for them, then one for each trailing index."""
        match expr:
            case Access():
                return self._dense(expr, rows) if expr in self.dense else self._entries(expr, rows)
            case Literal(value):
                return torch.tensor(
                    value, dtype=dtype_of_type(type_of(expr, self.types).type), device=self.device
                )
            case Op("present", (part,)):
                return self._shaped(self._holds(part, rows).to(torch.int64))
            case Op("everywhere" | "vanishing", (part,)) | Op("on", (_, part)):
                return self.value(part, rows)
            case Op(name, args):
                return self._apply(name, args, expr, rows)
        raise AssertionError(f"no value for {expr!r}")

    def _apply(self, name: str, args: tuple[Expr, ...], expr: Expr, rows: slice) -> torch.Tensor:
        values = [self.value(arg, rows) for arg in args]
        wanted = dtype_of_type(argument_type(name, [type_of(arg, self.types) for arg in args]).computes_in)
        if name == "where":
            result = torch.where(values[0] != 0, values[1].to(wanted), values[2].to(wanted))
        else:
            function = OPERATORS[name].torch or getattr(torch, name)
            result = function(*(value.to(wanted) for value in values))
        return result.to(dtype_of_type(type_of(expr, self.types).type.computes_in))

    def _holds(self, expr: Expr, rows: slice) -> torch.Tensor:
        """Check at which points the entries are stored without which ``expr`` is zero."""
        count = len(range(*rows.indices(self.points.count)))
        holds = torch.zeros(count, dtype=torch.bool, device=self.device)
        for clause in self.support(expr):
            part = torch.ones(count, dtype=torch.bool, device=self.device)
            for access in clause:
                is_there = self.entries_at_points[access][1]
                if is_there is not None:
                    part &= is_there[rows]
            holds |= part
        return holds

    def _entries(self, access: Access, rows: slice) -> torch.Tensor:
        entry, is_there = self.entries_at_points[access]
        values = self.values[access]
        if entry is None:
            return self._shaped(values[rows])
        if not values.numel():
            return self._shaped(torch.zeros(entry[rows].numel(), dtype=values.dtype, device=self.device))
        picked = values[entry[rows]]
        if is_there is not None:
            picked = torch.where(
                is_there[rows], picked, torch.zeros((), dtype=picked.dtype, device=self.device)
            )
        return self._shaped(picked)

    def _shaped(self, column: torch.Tensor) -> torch.Tensor:
        return column.view(-1, *(1,) * len(self.trailing))

    def _dense(self, access: Access, rows: slice) -> torch.Tensor:
        """Gather a dense operand at some of the points; diagonals where an index stands several times."""
        tensor, labels = self.dense[access], list(access.indices)
        while len(set(labels)) < len(labels):
            twice = next(index for index in labels if labels.count(index) > 1)
            first, second = [dim for dim, index in enumerate(labels) if index == twice][:2]
            tensor = tensor.diagonal(dim1=first, dim2=second)
            labels = [index for dim, index in enumerate(labels) if dim not in (first, second)] + [twice]
        picked = [index for index in labels if index in self.joined]
        remaining = [index for index in self.trailing if index in labels]
        tensor = tensor.permute([labels.index(index) for index in (*picked, *remaining)])
        if picked:
            tensor = tensor[tuple(self.points.columns[index][rows] for index in picked)]
        else:
            tensor = tensor.unsqueeze(0)
        shape = [self.sizes[index] if index in remaining else 1 for index in self.trailing]
        return tensor.reshape(tensor.shape[0], *shape)

    # the result -------------------------------------------------------------------------------------------

    def run(self, dtype: torch.dtype, identity: float) -> Places:
        """Compute the result in ``dtype`` at every place that some point belongs to."""
        target = self.step.target.indices
        target_indices = tuple(index for index in self.joined if index in target)
        places, group = self._places(target_indices)
        trailing = tuple(index for index in self.trailing if index in target)
        wide = torch.int64 if dtype == torch.bool else dtype
        shape = (places.count, *(self.sizes[index] for index in trailing))
        out = torch.full(shape, int(identity) if wide != dtype else identity, dtype=wide, device=self.device)
        width = max(1, math.prod(self.sizes[index] for index in self.trailing))
        chunk = max(1, MAX_VALUES_PER_CHUNK // width)
        for begin in range(0, self.points.count, chunk):
            rows = slice(begin, min(begin + chunk, self.points.count))
            self._gather(out, group[rows], self.value_at(rows, rows.stop - begin, dtype).to(wide))
        return Places(places.columns, out.to(dtype), trailing)

    def _places(self, indices: Sequence[str]) -> tuple[Relation, torch.Tensor]:
        """Return the positions of the result in ``indices``, each once, in order, and that of each point."""
        points = self.points
        if not indices:
            any_point = int(points.count > 0)
            return Relation({}, {}, any_point, self.device), torch.zeros(
                points.count, dtype=torch.int64, device=self.device
            )
        (key,) = relations.keys([points.columns], indices, self.sizes)
        once, group, _ = distinct(key)
        first = torch.zeros(once.numel(), dtype=torch.int64, device=self.device)
        first[group] = torch.arange(group.numel(), device=self.device)
        columns = {index: points.columns[index][first] for index in indices}
        return Relation(columns, {}, once.numel(), self.device), group

    def value_at(self, rows: slice, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Evaluate the body at ``count`` points, reduced over the trailing indices not in the result."""
        value = self.value(self.step.body, rows).expand(count, *(self.sizes[i] for i in self.trailing))
        value = (value != 0 if self.step.reduction == "any" else value).to(dtype)
        target = self.step.target.indices
        dims = [dim for dim, index in enumerate(self.trailing, 1) if index not in target]
        if not dims:
            return value
        match self.step.reduction:
            case "sum" | "any":
                return value.any(dims) if value.dtype == torch.bool else value.sum(dims, dtype=value.dtype)
            case "max":
                return value.amax(dims)
            case "min":
                return value.amin(dims)
            case "prod":
                for dim in reversed(dims):
                    value = value.prod(dim, dtype=value.dtype)
                return value
        raise AssertionError(f"cannot reduce by {self.step.reduction!r}")

    def _gather(self, out: torch.Tensor, group: torch.Tensor, value: torch.Tensor) -> None:
        """Combine the values that belong to one place."""
        match self.step.reduction:
            case "sum":
                add_rows(out, group, value)
            case "any" | "max" | "min" | "prod" as name:
                how = {"any": "amax", "max": "amax", "min": "amin", "prod": "prod"}[name]
                places = group.view(-1, *(1,) * (value.dim() - 1)).expand_as(value)
                out.scatter_reduce_(0, places, value, how)


def all_places(
    places: Places, order: Sequence[str], sizes: Mapping[str, int]
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the coordinates in each index of ``order``, and the values, of all positions one by one."""
    relation = Relation(places.columns, {}, places.values.shape[0], places.values.device)
    for index in places.trailing:
        relation = relation.crossed(index, sizes[index])
    return [relation.columns[index] for index in order], places.values.reshape(-1)
