"""Layers with dense weights for sparse inputs: training costs what the inputs store.

With ``sparse_grad`` the gradient of a weight stores only what the batch uses, and optimizers update only
that, with its state: as with ``torch.optim.SparseAdam``, momentum and weight decay of a row continue when it
is used next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.compile.capture.function_operators import operator
from scorch._src.formats import as_format
from scorch._src.loops.types import LAST_INT32
from scorch._src.ops.embedding_bag import split_bags
from scorch._src.statements.einsum import einsum
from scorch._src.storage.coordinates import coordinates
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.autograd import sparse_of, values_of
from scorch._src.tensor.create.build import from_coordinates
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, CallError, OperandError, ShapeError


class Linear(torch.nn.Linear):
    """``torch.nn.Linear`` that also takes sparse inputs, and trains on them at their cost.

    With ``sparse_grad`` the gradient of the weight stores only the columns of features that the batch has,
    and optimizers update only these, with their state: as ``torch.optim.SparseAdam``, momentum and weight
    decay of a column continue when it is used next. Without, and in graphs of ``torch.compile``, the
    gradient is dense.

    >>> import scorch
    >>> layer = scorch.nn.Linear(10000, 4, sparse_grad=True)
    >>> layer(scorch.rand(8, 10000, density=0.001, format="csr")).sum().backward()
    >>> layer.weight.grad.density < 0.01
    True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        sparse_grad: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self.sparse_grad = sparse_grad

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.sparse_grad or not isinstance(input, SparseTensor) or input.dim() not in (1, 2):
            return F.linear(input, self.weight, self.bias)
        if input.shape[-1:] != (self.in_features,):
            raise ShapeError(
                f"the input has shape {tuple(input.shape)}, but the layer takes {self.in_features} features"
            )
        if input.format.order[-1] != input.dim() - 1 or input.format.is_blocked:
            input = input.to_format("csr")  # which of its columns are stored is known by rows only
        equation = "ij,kj->ik" if input.dim() == 2 else "j,kj->k"
        product = einsum(equation, input, self.weight, format="dense", sparse_grad=True)
        return product if self.bias is None else product + self.bias

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, sparse_grad={self.sparse_grad}"


class SparseEmbeddingBag(torch.nn.Module):
    """Rows of a table, summed, averaged, or their maximum taken, for each row of a sparse matrix.

    ``input`` is a sparse matrix with a row for each bag and a column for each row of the table; its values
    are weights. ``torch.nn.EmbeddingBag``'s inputs work too: a matrix of row numbers, or a list with
    ``offsets``, and ``per_sample_weights``, in every mode. A mean is divided by the number of rows in the
    bag; a bag without rows gives zeros. With ``sparse_grad`` only rows that a batch has are updated;
    the gradient is dense in graphs of ``torch.compile``.

    >>> import torch, scorch
    >>> bag = scorch.nn.SparseEmbeddingBag(1000, 16, mode="sum")
    >>> bag(scorch.rand(4, 1000, density=0.01, format="csr")).shape
    torch.Size([4, 16])
    >>> bag(torch.tensor([1, 2, 4]), torch.tensor([0, 1])).shape
    torch.Size([2, 16])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str = "mean",
        *,
        sparse_grad: bool = True,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        _weight: torch.Tensor | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if mode not in ("sum", "mean", "max"):
            raise ArgumentError(f"mode is sum, mean or max, not {mode!r}")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ArgumentError(f"padding_idx is {padding_idx}, but there are {num_embeddings} rows")
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.mode = num_embeddings, embedding_dim, mode
        self.sparse_grad, self.include_last_offset = sparse_grad, include_last_offset
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        if _weight is None:
            _weight = torch.randn(num_embeddings, embedding_dim, device=device, dtype=dtype)
            if self.padding_idx is not None:
                _weight[self.padding_idx] = 0
        elif tuple(_weight.shape) != (num_embeddings, embedding_dim):
            raise ShapeError(f"the table has shape {tuple(_weight.shape)}")
        self.weight = torch.nn.Parameter(_weight)

    @classmethod
    def from_pretrained(
        cls, embeddings: torch.Tensor, freeze: bool = True, mode: str = "mean", **options: Any
    ) -> SparseEmbeddingBag:
        """Make a layer with this table, which is frozen unless ``freeze`` is False."""
        if embeddings.dim() != 2:
            raise ShapeError(f"a table is a matrix, not of shape {tuple(embeddings.shape)}")
        layer = cls(embeddings.shape[0], embeddings.shape[1], mode, _weight=embeddings, **options)
        layer.weight.requires_grad_(not freeze)
        return layer

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        embedding_bag = torch.ops.scorch.embedding_bag if torch.compiler.is_compiling() else _embedding_bag
        output: torch.Tensor = embedding_bag(
            input,
            offsets,
            per_sample_weights,
            self.weight,
            self.mode,
            self.sparse_grad,
            self.include_last_offset,
            self.padding_idx,
        )
        return output

    def extra_repr(self) -> str:
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}, sparse_grad={self.sparse_grad}"
        )


@dataclass(frozen=True)
class _Table:
    """The table of an embedding bag, and how its rows are combined."""

    weight: torch.Tensor
    mode: str
    sparse_grad: bool
    include_last_offset: bool
    padding_idx: int | None

    @property
    def num_embeddings(self) -> int:
        return self.weight.shape[0]

    @property
    def embedding_dim(self) -> int:
        return self.weight.shape[1]

    def combine(
        self, input: torch.Tensor, offsets: torch.Tensor | None, per_sample_weights: torch.Tensor | None
    ) -> torch.Tensor:
        bag, row, weights, count = self._samples(input, offsets, per_sample_weights)
        if self.padding_idx is not None:
            is_counted = row != self.padding_idx
            bag, row, weights = bag[is_counted], row[is_counted], weights[is_counted]
        if self.mode == "max":
            return self._max_rows(bag, row, weights, count)
        matrix = from_coordinates(
            torch.stack([bag, row]), weights, (count, self.num_embeddings), format="csr"
        )
        output = einsum("ij,jk->ik", matrix, self.weight, format="dense", sparse_grad=self.sparse_grad)
        if self.mode == "mean":
            output = output / torch.bincount(bag, minlength=count).clamp(min=1).unsqueeze(1)
        return output

    def _samples(
        self, input: torch.Tensor, offsets: torch.Tensor | None, per_sample_weights: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
        """Return the bag, the row and the weight of each sample, and the number of bags."""
        if not isinstance(input, SparseTensor):
            if input.dtype not in (torch.int32, torch.int64):
                raise OperandError(f"rows are numbered by int32 or int64, not {input.dtype}")
            if per_sample_weights is not None and per_sample_weights.dtype != self.weight.dtype:
                raise CallError(
                    f"per_sample_weights are {per_sample_weights.dtype}, but the table is {self.weight.dtype}"
                )
            bags = split_bags(input, offsets, self.include_last_offset, per_sample_weights, self.weight)
            return bags.bag, bags.row, bags.weight, bags.count
        if offsets is not None or per_sample_weights is not None:
            raise CallError("a sparse matrix says itself where bags begin, and its values are the weights")
        if input.dim() != 2 or input.shape[1] != self.num_embeddings:
            raise ShapeError(
                f"the input has shape {tuple(input.shape)}; it has a row for each bag and a column for "
                f"each of the {self.num_embeddings} rows of the table"
            )
        form = "csr" if input.format.is_blocked else input.format
        stored = input.to_format(form)
        assert isinstance(stored, SparseTensor)
        rows_and_columns = coordinates(stored.storage.pattern)
        return (
            rows_and_columns[0],
            rows_and_columns[1],
            values_of(stored).to(self.weight.dtype),
            input.shape[0],
        )

    def _max_rows(
        self, bag: torch.Tensor, row: torch.Tensor, weights: torch.Tensor, count: int
    ) -> torch.Tensor:
        """Return the maximum of weighted rows; a one in each row of a sparse matrix picks them."""
        samples = row.numel()
        dtype = torch.int32 if max(samples, self.num_embeddings) <= LAST_INT32 else torch.int64
        arrays = torch.arange(samples + 1, dtype=dtype, device=row.device), row.to(dtype)
        shape = (samples, self.num_embeddings)
        pattern = Pattern(
            as_format("csr", 2), shape, (None, arrays[0]), (None, arrays[1]), (samples, samples)
        )
        picked = einsum(
            "ij,jk->ik",
            sparse_of(pattern, weights),
            self.weight,
            format="dense",
            sparse_grad=self.sparse_grad,
        )
        output = picked.new_zeros(count, self.embedding_dim)
        index = bag.unsqueeze(1).expand_as(picked)
        return output.scatter_reduce(0, index, picked, "amax", include_self=False)


def _fake_embedding_bag(
    input: torch.Tensor,
    offsets: Any,
    per_sample_weights: Any,
    table: torch.Tensor,
    mode: str,
    grad: bool,
    has_last: bool,
    _: Any,
) -> torch.Tensor:
    count = input.shape[0] if input.dim() == 2 else offsets.shape[0] - (1 if has_last else 0)
    return table.new_empty((count, table.shape[1]))


@operator(
    "embedding_bag(Tensor input, Tensor? offsets, Tensor? given, Tensor table, str mode, bool sparse_grad, "
    "bool has_last, int? padding) -> Tensor",
    _fake_embedding_bag,
)
def _embedding_bag(
    input: torch.Tensor,
    offsets: torch.Tensor | None,
    per_sample_weights: torch.Tensor | None,
    table: torch.Tensor,
    mode: str,
    sparse_grad: bool,
    has_last: bool,
    padding: int | None,
) -> torch.Tensor:
    """Combine rows of ``table`` by bags."""
    return _Table(table, mode, sparse_grad, has_last, padding).combine(input, offsets, per_sample_weights)
