"""Which rows of an array that is sharded over ranks each rank needs from the others: its halo.

The plan is computed once, from the coordinates at which a rank has entries: those it does not own are its
halo, sorted, and their owners learn what to send. Locally, own rows come first and then the halo.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.dataclass import dataclass
from scorch._src.distributed.communication.agreement import sharing_errors
from scorch._src.distributed.communication.collectives import (
    Group,
    exchange_counts,
    exchange_rows,
    gather_numbers,
    rank_in,
    size_of,
)
from scorch._src.distributed.communication.route import Route
from scorch._src.distributed.cuts import owners_in
from scorch._src.tensor.create.check import advice_on, check_tensor
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import OperandError, ShapeError, kind_of

Tensor = torch.Tensor
FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)  # of SplitMix64


@dataclass(frozen=True, eq=False)
class Order:
    """The original numbers of the rows that this rank owns, and a checksum of those of all ranks."""

    numbers: Tensor
    checksum: int


def order_of(numbers: Tensor, begin: int, group: Group) -> Order | None:
    """Return the order of rows whose original numbers are given, from ``begin`` on; all ranks call this.

    None where all rows have their original numbers.
    """
    now = torch.arange(begin, begin + len(numbers), device=numbers.device)
    mixed = (now * FACTOR) ^ (numbers + 1)
    mixed = (mixed ^ ((mixed >> 29) & ((1 << 35) - 1))) * FACTOR
    facts = gather_numbers([int((numbers != now).sum()), int(mixed.sum())], group, numbers)
    moved, checksums = zip(*facts, strict=True)
    return Order(numbers, sum(checksums)) if any(moved) else None


def check_dense(name: str, x: Any) -> None:
    """Refuse an operand that is not a plain dense tensor."""
    if isinstance(x, SparseTensor):
        raise OperandError(f"{name} is an unsharded SparseTensor; shard it, or convert it to dense")
    if not isinstance(x, Tensor):
        raise OperandError(
            f"{name} must be this rank's rows of a dense tensor, but got {kind_of(x)}; {advice_on(x)}"
        )
    if x.layout is not torch.strided:
        raise OperandError(f"{name} must be dense, but got layout {x.layout}; convert it with .to_dense()")
    _refuse_dtensor(name, x)


def _refuse_dtensor(name: str, x: Any) -> None:
    if hasattr(x, "device_mesh"):
        raise OperandError(
            f"{name} is a DTensor; scorch.distributed.from_dtensor returns this rank's rows of it"
        )


class HaloPlan:
    """The rows of one dimension that this rank owns, and its halo."""

    def __init__(self, used: Tensor, cuts: Tensor, group: Group, order: Order | None = None) -> None:
        self.cuts, self.group = cuts, group
        self.order = order  # the rows as they were numbered before they were partitioned
        self.kept: dict[str, Any] = {}  # what was computed from the cuts, on all ranks alike
        rank = rank_in(group)
        self.begin, self.end = int(cuts[rank]), int(cuts[rank + 1])
        self.ghosts = used[(used < self.begin) | (used >= self.end)]
        self.route = self._ask_owners()

    def _ask_owners(self) -> Route:
        parts = size_of(self.group)
        wanted = torch.bincount(owners_in(self.ghosts, self.cuts), minlength=parts).tolist()
        asked = exchange_counts(wanted, self.group, self.ghosts)
        picks = self.ghosts.new_empty(sum(asked))
        if parts > 1:
            exchange_rows(picks, self.ghosts, asked, wanted, self.group)
        return Route(picks - self.begin, asked, self.own, self.group, wanted)

    @property
    def own(self) -> int:
        """The number of rows that this rank owns."""
        return self.end - self.begin

    @property
    def size(self) -> int:
        """The number of rows that this rank has, including the halo."""
        return self.own + len(self.ghosts)

    @property
    def extent(self) -> int:
        """The number of rows over all ranks."""
        return int(self.cuts[-1])

    @property
    def is_local(self) -> bool:
        """Whether no rank needs rows of others."""
        return self.route.total == 0

    def has_owners_of(self, other: HaloPlan) -> bool:
        """Check whether both have the same cuts and order, so that each row has one owner and one number."""
        orders = [plan.order.checksum if plan.order else None for plan in (self, other)]
        return torch.equal(self.cuts, other.cuts) and orders[0] == orders[1]

    def to_local(self, ids: Tensor) -> Tensor:
        """Return the local numbers of rows that this rank has."""
        ghosts = torch.searchsorted(self.ghosts, ids) + self.own
        return torch.where((ids >= self.begin) & (ids < self.end), ids - self.begin, ghosts)

    def to_global(self, numbers: Tensor) -> Tensor:
        """Return the global numbers of rows by their local numbers."""
        own = torch.arange(self.begin, self.end, device=self.ghosts.device)
        return torch.cat([own, self.ghosts])[numbers.to(torch.int64)]

    def pick(self, tensor: Tensor) -> Tensor:
        """Return this rank's rows of a tensor that has all rows in their original order."""
        check_tensor("the argument", tensor)
        _refuse_dtensor("the tensor", tensor)
        if tensor.dim() == 0 or len(tensor) != self.extent:
            have = "no rows" if tensor.dim() == 0 else f"{len(tensor)} rows"
            raise ShapeError(f"the tensor has {have}, but must have all {self.extent} rows")
        if self.order is None:
            return tensor[self.begin : self.end]
        return tensor[self.order.numbers.to(tensor.device)]

    def check_before_exchange(self, name: str, x: Any) -> None:
        """Refuse an array as ``check`` does; ranks that are about to exchange rows hear of it."""
        if self.is_local:
            self.check(name, x)
        else:
            with sharing_errors(self.group, f"exchange of {name}", self.ghosts.device):
                self.check(name, x)

    def check(self, name: str, x: Any) -> None:
        """Refuse what does not have this rank's rows."""
        check_dense(name, x)
        if x.dim() == 0 or len(x) != self.own:
            have = "no rows" if x.dim() == 0 else f"{len(x)} rows"
            raise ShapeError(
                f"{name} has {have}, but this rank owns {self.own} of {self.extent} (starting at "
                f"{self.begin}). "
                "Pass this rank's rows: A.rows_of(x) and A.columns_of(x) select them from a tensor that "
                "every rank has"
            )

    def extend(self, tensors: Sequence[Tensor], wire: torch.dtype | None = None) -> list[Tensor]:
        """Return arrays with the halo below their own rows: one exchange for all of one dtype."""
        result: list[Tensor] = list(tensors)
        if self.is_local:
            return result
        by_dtype: dict[torch.dtype, list[int]] = {}
        for number, tensor in enumerate(tensors):
            by_dtype.setdefault(tensor.dtype, []).append(number)
        for numbers in by_dtype.values():
            for number, extended in zip(
                numbers, self._extend_together([tensors[n] for n in numbers], wire), strict=True
            ):
                result[number] = extended
        return result

    def _extend_together(self, tensors: list[Tensor], wire: torch.dtype | None) -> list[Tensor]:
        if len(tensors) == 1:
            return [self.route.extend(tensors[0], wire)]
        flat = [tensor.unsqueeze(-1).flatten(1) for tensor in tensors]
        joined = self.route.extend(torch.cat(flat, 1), wire)
        parts = torch.split(joined, [part.shape[1] for part in flat], 1)
        return [
            part.reshape(self.size, *tensor.shape[1:]) for part, tensor in zip(parts, tensors, strict=True)
        ]

    def fold(self, g: Tensor, wire: torch.dtype | None = None) -> Tensor:
        """Return own rows plus the parts of them that other ranks hold."""
        return g if self.is_local else self.route.fold(g, wire)
