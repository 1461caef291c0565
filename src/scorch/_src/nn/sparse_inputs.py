"""Layers with dense weights for sparse inputs: training costs as much as the nonzeros of the inputs.

With ``sparse_grad``, the gradient of a weight stores only what the batch uses (``nn.optimizer_hooks``).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.compile.capture.function_operators import operator
from scorch._src.name_hints import suggests_keywords
from scorch._src.nn.layer import KernelLayer, Layer
from scorch._src.nn.masks import csr_from_rows
from scorch._src.nn.pattern import check_features, check_sizes
from scorch._src.ops.embedding_bag import split_bags
from scorch._src.statements.autocast import check_same_dtype
from scorch._src.statements.einsum import einsum
from scorch._src.statements.operands import as_differentiable
from scorch._src.storage.coordinates import coordinates
from scorch._src.tensor.autograd import values_of
from scorch._src.tensor.create.build import from_coordinates
from scorch._src.tensor.create.check import check_tensor
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, CallError, OperandError, ShapeError


class Linear(Layer, torch.nn.Linear):
    """``torch.nn.Linear`` that also accepts sparse inputs.

    Args:
        in_features: the size of an input.
        out_features: the size of an output.
        bias: whether to add a learned bias.
        sparse_grad: whether the gradient of the weight stores only the columns of the features in the batch.
            Optimizers then update only these columns and their state: as in ``torch.optim.SparseAdam``,
            momentum and weight decay of a column resume when it is next used. In graphs of
            ``torch.compile``, the gradient is dense.
        device: the device of the parameters.
        dtype: the dtype of the parameters.

    Example:

        >>> import scorch
        >>> layer = scorch.nn.Linear(10000, 4, sparse_grad=True)
        >>> layer(scorch.rand(8, 10000, density=0.001, format="csr")).sum().backward()
        >>> layer.weight.grad.density < 0.01
        True
    """

    @suggests_keywords
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
        """Return ``input @ weight.T + bias`` for a dense or sparse input."""
        check_features(input, self.in_features)
        if not self.sparse_grad or not isinstance(input, SparseTensor) or input.dim() not in (1, 2):
            return F.linear(input, self.weight, self.bias)
        check_same_dtype("input", input, self.weight)
        if input.format.order[-1] != input.dim() - 1 or input.format.is_blocked:
            input = input.to_format("csr")  # which of its columns are stored is known by rows only
        equation = "ij,kj->ik" if input.dim() == 2 else "j,kj->k"
        product = einsum(equation, input, self.weight, format="dense", sparse_grad=True)
        return product if self.bias is None else product + self.bias

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, sparse_grad={self.sparse_grad}"


class SparseEmbeddingBag(KernelLayer):
    """``torch.nn.EmbeddingBag`` that also accepts a sparse matrix: one row per bag, one column per
    embedding.

    The values of the matrix are the weights of the embeddings, in every mode. A mean is divided by the number
    of embeddings in the bag; an empty bag gives zeros.

    Args:
        num_embeddings: the number of rows of the table.
        embedding_dim: the size of an embedding.
        mode: ``"sum"``, ``"mean"`` or ``"max"``.
        sparse_grad: whether the gradient of the table stores only the rows that the batch uses, so that
            optimizers update only these. In graphs of ``torch.compile``, the gradient is dense.
        include_last_offset: whether ``offsets`` ends with the number of indices, as in PyTorch.
        padding_idx: the index that is ignored.
        device: the device of the table.
        dtype: the dtype of the table.

    Raises:
        ArgumentError: ``mode`` is unknown, or ``padding_idx`` is out of range.

    Example:

        >>> import torch, scorch
        >>> bag = scorch.nn.SparseEmbeddingBag(1000, 16, mode="sum")
        >>> bag(scorch.rand(4, 1000, density=0.01, format="csr")).shape
        torch.Size([4, 16])
        >>> bag(torch.tensor([1, 2, 4]), torch.tensor([0, 1])).shape
        torch.Size([2, 16])
    """

    @suggests_keywords
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
        check_sizes(num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        if mode not in ("sum", "mean", "max"):
            raise ArgumentError(f"mode must be one of 'sum', 'mean', 'max', but got {mode!r}")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ArgumentError(
                f"padding_idx must be within num_embeddings={num_embeddings}, but got {padding_idx}"
            )
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.mode = num_embeddings, embedding_dim, mode
        self.sparse_grad, self.include_last_offset = sparse_grad, include_last_offset
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        if _weight is None:
            _weight = torch.randn(num_embeddings, embedding_dim, device=device, dtype=dtype)
            if self.padding_idx is not None:
                _weight[self.padding_idx] = 0
        elif tuple(_weight.shape) != (num_embeddings, embedding_dim):
            raise ShapeError(
                f"_weight must have shape ({num_embeddings}, {embedding_dim}), but got {tuple(_weight.shape)}"
            )
        self.weight = torch.nn.Parameter(_weight)

    @classmethod
    def from_pretrained(
        cls, embeddings: torch.Tensor, freeze: bool = True, mode: str = "mean", **options: Any
    ) -> SparseEmbeddingBag:
        """Return a layer with an existing table.

        Args:
            embeddings: the table, one row per embedding.
            freeze: whether the table is frozen.
            mode: ``"sum"``, ``"mean"`` or ``"max"``.
            options: more arguments of the constructor.
        """
        if embeddings.dim() != 2:
            raise ShapeError(f"embeddings must be 2-D, but got shape {tuple(embeddings.shape)}")
        layer = cls(embeddings.shape[0], embeddings.shape[1], mode, _weight=embeddings, **options)
        layer.weight.requires_grad_(not freeze)
        return layer

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return one row per bag.

        Args:
            input: a sparse matrix of shape (bags, ``num_embeddings``), a dense matrix of indices with one bag
                per row, or a vector of indices with ``offsets``.
            offsets: where each bag begins in a vector of indices.
            per_sample_weights: a weight for each index; the weights of a sparse matrix are its values.
        """
        check_tensor("input", input)
        input = as_differentiable("input", input)
        if offsets is not None:
            check_tensor("offsets", offsets)
        if per_sample_weights is not None:
            check_tensor("per_sample_weights", per_sample_weights)
        embedding_bag = torch.ops.scorch.embedding_bag if torch.compiler.is_compiling() else _embedding_bag
        options = self.mode, self.sparse_grad, self.include_last_offset, self.padding_idx
        output: torch.Tensor = embedding_bag(input, offsets, per_sample_weights, self.weight, *options)
        return output

    def extra_repr(self) -> str:
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}, sparse_grad={self.sparse_grad}"
        )


@operator(
    "embedding_bag(Tensor input, Tensor? offsets, Tensor? given, Tensor table, str mode, bool sparse_grad, "
    "bool has_last, int? padding) -> Tensor",
    lambda input, offsets, given, table, mode, sparse_grad, has_last, padding: table.new_empty(
        input.shape[0] if input.dim() == 2 else offsets.shape[0] - int(has_last), table.shape[1]
    ),
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
    """Reduce the rows of ``table`` by bags."""
    if isinstance(input, SparseTensor):
        bag, row, weights, count = _stored_samples(input, offsets, per_sample_weights, table)
    else:
        if input.dtype not in (torch.int32, torch.int64):
            is_matrix = input.dim() == 2 and input.shape[1] == table.shape[0]
            hint = "; convert weights with scorch.from_torch(input, format='csr')" if is_matrix else ""
            raise OperandError(f"indices must be int32 or int64, but got {input.dtype}{hint}")
        if per_sample_weights is not None and per_sample_weights.dtype != table.dtype:
            raise CallError(
                f"per_sample_weights have dtype {per_sample_weights.dtype}, but the table has {table.dtype}"
            )
        bags = split_bags(input, offsets, has_last, per_sample_weights, table)
        bag, row, weights, count = bags.bag, bags.row, bags.weight, bags.count
    if padding is not None:
        is_counted = row != padding
        bag, row, weights = bag[is_counted], row[is_counted], weights[is_counted]
    matrix: torch.Tensor
    if mode == "max":  # a one in each row of a sparse matrix picks the rows
        samples = row.numel()
        pos = torch.arange(samples + 1, device=row.device)
        matrix = csr_from_rows(pos, row, weights, (samples, table.shape[0]))
    else:
        matrix = from_coordinates(torch.stack([bag, row]), weights, (count, table.shape[0]), format="csr")
    rows = einsum("ij,jk->ik", matrix, table, format="dense", sparse_grad=sparse_grad)
    if mode == "max":
        index = bag.unsqueeze(1).expand_as(rows)
        return rows.new_zeros(count, table.shape[1]).scatter_reduce(
            0, index, rows, "amax", include_self=False
        )
    return rows / torch.bincount(bag, minlength=count).clamp(min=1).unsqueeze(1) if mode == "mean" else rows


def _stored_samples(
    input: SparseTensor, offsets: Any, per_sample_weights: Any, table: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Return the bag, the row and the weight of each stored value, and the number of bags."""
    if offsets is not None or per_sample_weights is not None:
        raise CallError(
            "a sparse input takes no offsets and per_sample_weights: its rows are the bags, its values the "
            "weights"
        )
    if input.dim() != 2 or input.shape[1] != table.shape[0]:
        raise ShapeError(
            f"the input must have shape (bags, {table.shape[0]}), one column per row of the table, but got "
            f"{tuple(input.shape)}"
        )
    check_same_dtype("input", input, table)
    stored = input.to_format("csr" if input.format.is_blocked else input.format)
    assert isinstance(stored, SparseTensor)
    rows_and_columns = coordinates(stored.storage.pattern)
    return rows_and_columns[0], rows_and_columns[1], values_of(stored).to(table.dtype), input.shape[0]
