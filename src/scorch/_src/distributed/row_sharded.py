"""Sparse tensors whose rows are sharded over ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from scorch._src.bounded import BoundedCache
from scorch._src.distributed.calls import call, refusal
from scorch._src.distributed.checkpoint.entry_state import load_state, state_of
from scorch._src.distributed.communication.budget import one_call
from scorch._src.distributed.communication.collectives import Group, gather_numbers, rank_in, size_of
from scorch._src.distributed.communication.halo import HaloPlan
from scorch._src.distributed.communication.replicate import gather_rows
from scorch._src.distributed.cost_model.formulas import Load
from scorch._src.distributed.cost_model.plan import Plan, load_of, share_of
from scorch._src.distributed.names import TensorNames
from scorch._src.distributed.sums import gather_processes
from scorch._src.ops.graph.neighbours import ShardedGraph
from scorch._src.storage.coordinates import numbered_entries
from scorch._src.tensor.autograd import values_of
from scorch._src.tensor.create.torch_constructors import sparse_coo_tensor
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ShapeError, UnsupportedError

MAX_KEPT = 8  # matrices that are computed from one, such as its normalization

Tensor = torch.Tensor
Shape = tuple[int, ...]


class RowSharded(TensorNames, ShardedGraph):
    """A sparse tensor whose rows are sharded over the ranks of a mesh, in shards of any size.

    Create it with ``shard``, ``shard_rows``, ``load_rows`` or ``load``. Dense operands are plain tensors:
    this rank's rows along a sharded index, and replicated otherwise.

    Attributes:
        local: the local shard, in any sparse format. Its rows are those that this rank owns; its columns are
            those that this rank owns, followed by the halo: columns of other ranks at which it has entries.
        rows: the halo plan of the rows; rows that are split over ranks are part of their halo.
        columns: the halo plan of the columns.

    Example:

        >>> import torch, scorch, scorch.distributed as sd
        >>> A = sd.shard(scorch.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), format="csr"))
        >>> A.shape, A.cuts.tolist(), A.count_entries()
        ((2, 2), [0, 2], 2)
    """

    def __init__(self, local: Any, rows: HaloPlan, columns: HaloPlan, mesh: Any) -> None:
        self.local: SparseTensor = local
        self.rows, self.columns, self.mesh = rows, columns, mesh
        self.wire: torch.dtype | None = None
        self.algorithm = "halo"
        self.derived: BoundedCache[Any, Any] = BoundedCache(MAX_KEPT)  # computed from its entries once
        self.replicas = 1
        self.split: bool | int = False  # the entries from which on a row is split over ranks
        self.replicated: tuple[tuple[int, Load], ...] = ()  # what 1.5-D would move, where it was counted
        self.spread: tuple[int, int] | None = None  # entries of all ranks, and the most of one
        self.kept: dict[str, Any] = {}  # what algorithms have computed from the entries

    # what it is ----------------------------------------------------------------------------------------

    @property
    def group(self) -> Group:
        """The process group."""
        return self.rows.group

    @property
    def shape(self) -> Shape:
        """The global shape."""
        return (self.rows.extent, self.columns.extent, *self.local.shape[2:])

    @property
    def cuts(self) -> Tensor:
        """Where the rows of each rank begin, followed by the number of rows."""
        return self.rows.cuts

    @property
    def order(self) -> Tensor:
        """The numbers that this rank's rows had before ``partition`` or ``repartition`` moved them."""
        if self.rows.order is not None:
            return self.rows.order.numbers
        return torch.arange(self.rows.begin, self.rows.end, device=self.rows.ghosts.device)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        return self.local.dtype

    @property
    def device(self) -> torch.device:
        """The device of the local shard."""
        return self.local.device

    @property
    def format(self) -> Any:
        """The format of the local shard."""
        return self.local.format

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.local.dim()

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self.local.dim()

    def __len__(self) -> int:
        return self.shape[0]

    def count_entries(self) -> int:
        """Return the number of stored elements over all ranks; all ranks must call it."""
        return sum(count for (count,) in gather_numbers([self.local.nnz], self.group, self.rows.ghosts))

    @property
    def requires_grad(self) -> bool:
        """Whether the values require a gradient."""
        return self.local.requires_grad

    def requires_grad_(self, requires_grad: bool = True) -> RowSharded:
        """Set whether the values require a gradient; ``grad`` is sharded like the tensor."""
        self.local.requires_grad_(requires_grad)
        return self

    @property
    def grad(self) -> RowSharded | None:
        """The gradient of the values, sharded like the tensor, or None."""
        return None if self.local.grad is None else self.with_local(self.local.grad)

    @grad.setter
    def grad(self, grad: RowSharded | None) -> None:
        self.local.grad = None if grad is None else grad.local

    def __repr__(self) -> str:
        shape, dtype = tuple(self.shape), str(self.dtype).removeprefix("torch.")
        rows = f"{self.rows.begin}:{self.rows.end}"
        return (
            f"RowSharded(shape={shape}, dtype={dtype}, format={self.format}, rows={rows} on rank "
            f"{rank_in(self.group)} of {size_of(self.group)}, local nnz={self.local.nnz}, "
            f"halo={len(self.columns.ghosts)})"
        )

    # parts of it ---------------------------------------------------------------------------------------

    def with_local(self, local: Any) -> RowSharded:
        """Return a tensor sharded like this one, with other entries in the same rows and columns."""
        result = RowSharded(local, self.rows, self.columns, self.mesh)
        result.use_options_of(self)
        result.spread = self.spread if local.nnz == self.local.nnz else None
        return result

    def use_options_of(self, other: RowSharded) -> None:
        """Exchange rows as another tensor does, whose entries are distributed in the same way."""
        self.wire, self.split = other.wire, other.split
        self.algorithm, self.replicas = other.algorithm, other.replicas

    def use_options_by_rows(self, other: RowSharded) -> None:
        """Exchange rows as another tensor does, with entries at the owners of their rows."""
        self.wire = other.wire
        self.algorithm = "halo" if other.algorithm == "1.5d" else other.algorithm

    def map_local(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> RowSharded:
        """Apply a zero-preserving function that keeps the shape to the local shard."""
        return self.with_local(function(self.local, *args, **kwargs))

    def detach(self) -> RowSharded:
        """Return the tensor detached from the graph of autograd."""
        return self.map_local(torch.detach)

    def to(self, dtype: torch.dtype, *, copy: bool = False) -> RowSharded:
        """Convert the entries to another dtype."""
        if not isinstance(dtype, torch.dtype):
            raise refusal("to(device)")
        return self.map_local(torch.Tensor.to, dtype, copy=copy)

    def to_format(self, format: Any) -> RowSharded:
        """Convert the local shard to another sparse format."""
        local = self.local.to_format(format)
        if not isinstance(local, SparseTensor):
            raise UnsupportedError(f"the local shard must have a sparse format, but {format} is dense")
        return self.with_local(local)

    def rows_of(self, tensor: Tensor) -> Tensor:
        """Select this rank's rows from a tensor that every rank has, and move them to the device of ``A``."""
        return self.rows.pick(tensor).to(self.device)

    def columns_of(self, tensor: Tensor) -> Tensor:
        """Select the rows that belong to this rank's columns, such as the rows of ``X`` for ``A @ X``."""
        return self.columns.pick(tensor).to(self.device)

    def entries(self) -> tuple[list[Tensor], Tensor]:
        """Return the global coordinates of this rank's entries, and their values."""
        columns, places = numbered_entries(self.local.storage.pattern)
        wide = [column.to(torch.int64) for column in columns]
        wide[0], wide[1] = self.rows.to_global(wide[0]), self.columns.to_global(wide[1])
        return wide, values_of(self.local)[places]

    @one_call
    def gather(self) -> SparseTensor:
        """Return the whole tensor on every rank. Collective: all ranks must call it.

        Every entry moves to every rank. All ranks continue with the same tensor and the same gradient. After
        ``partition``, rows and columns have their new numbers: if ``orders`` are the ``A.order`` of all ranks
        and ``back = torch.cat(orders).argsort()``, then ``A.gather()[back][:, back]`` has the original ones.
        """
        crd, values = self.entries()
        places = gather_rows(torch.stack(crd, 1), self.group)
        everything = gather_processes(values, self.group)
        result = sparse_coo_tensor(places.t(), everything, self.shape, format=self.local.format)
        assert isinstance(result, SparseTensor)
        return result

    @property
    def T(self) -> RowSharded:
        """The transposed matrix; entries stay on their ranks, rows and columns swap roles."""
        if self.ndim != 2:
            raise ShapeError(f".T is only supported for matrices, but this tensor is {self.ndim}-D")
        result = RowSharded(self.local.T, self.columns, self.rows, self.mesh)
        result.use_options_of(self)
        result.split = False
        result.spread = self.spread
        result.kept["transposed"] = self, self.local
        return result

    @property
    def mT(self) -> RowSharded:
        """The transposed matrix."""
        return self.T

    @property
    def plan(self) -> Plan:
        """The predicted communication, memory and time of a product, computed without communication.

        ``A.plan.at(features=64, network="100Gb")`` predicts for other widths and networks.
        """
        return Plan(
            share_of(self.local.nnz, self.rows, self.columns),
            load_of(self.local.nnz, self.spread, self.rows, self.columns),
            self.algorithm,
            self.replicas,
            self.dtype,
            self.wire,
            self.replicated,
        )

    def t(self) -> RowSharded:
        """Return the transposed matrix."""
        return self.T

    @property
    def has_split_rows(self) -> bool:
        """Whether some rows have entries on several ranks."""
        return not self.rows.is_local

    # checkpoints ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state that ``torch.distributed.checkpoint`` saves; all ranks must call it."""
        return state_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the values of a state with the same sparsity pattern, which may have had other cuts."""
        load_state(self, state)

    # PyTorch functions ---------------------------------------------------------------------------------

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return call(func, args, kwargs or {})

    def __matmul__(self, other: Any) -> Any:
        return call(torch.matmul, (self, other), {})

    def __rmatmul__(self, other: Any) -> Any:
        return call(torch.matmul, (other, self), {})

    def __add__(self, other: Any) -> Any:
        return call(torch.add, (self, other), {})

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return call(torch.sub, (self, other), {})

    def __mul__(self, other: Any) -> Any:
        return call(torch.mul, (self, other), {})

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return call(torch.div, (self, other), {})

    def __neg__(self) -> Any:
        return call(torch.neg, (self,), {})

    def __abs__(self) -> Any:
        return call(torch.abs, (self,), {})

    def __pow__(self, exponent: Any) -> Any:
        return call(torch.pow, (self, exponent), {})

    def sum(self, dim: Any = None, **options: Any) -> Any:
        """Return the sum of all entries, or the sums of rows or columns, sharded like these."""
        return call(torch.sum, (self, dim), options)

    def norm(self, p: Any = 2, **options: Any) -> Any:
        """Return a norm over all entries, on every rank."""
        return call(torch.norm, (self, p), options)

    def softmax(self, dim: int, **options: Any) -> RowSharded:
        """Return the softmax over the stored elements of each row (1) or column (0)."""
        return call(torch.sparse.softmax, (self, dim), options)  # type: ignore[no-any-return]

    def over_neighbors(
        self, run: Callable[..., Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Tensor:
        """Run an aggregation of a graph layer over the neighbors of this rank's nodes."""
        return call(run, args, kwargs)  # type: ignore[no-any-return]

    def __copy__(self) -> RowSharded:
        return self.with_local(self.local)

    def __deepcopy__(self, memo: Any) -> RowSharded:
        return self.map_local(copy.deepcopy, memo)

    def __bool__(self) -> bool:
        raise UnsupportedError(
            "Boolean value of a sharded tensor is ambiguous; reduce it first, as in A.count_entries() > 0"
        )

    def __reduce__(self) -> Any:
        raise UnsupportedError(
            "a sharded tensor cannot be pickled, because its shards are on several ranks; save it with "
            "scorch.distributed.save or torch.distributed.checkpoint.save"
        )
