"""Embedding tables with sparse weights."""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.compile.capture.function_operators import operator
from scorch._src.grad_state import untracked
from scorch._src.name_hints import created_by_sparsify
from scorch._src.nn.pattern import refuse_weight
from scorch._src.nn.sparse_layer import LayerOfOneMatrix
from scorch._src.nn.sparse_linear import SparseLinear
from scorch._src.tensor.autograd import values_of
from scorch._src.tensor.registry import entry
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import CallError, IndexRangeError


class SparseEmbedding(LayerOfOneMatrix):
    """An embedding whose table is sparse: look up rows as dense vectors.

    Create it with ``from_weight`` or ``scorch.sparsify``. ``table`` holds the trained values and the sparsity
    pattern.

    Args:
        table: a ``SparseLinear`` in ``csr`` format whose weight is the table.
        padding_idx: the index whose row gets no gradient.

    Example:

        >>> import torch, scorch
        >>> table = scorch.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), format="csr")
        >>> scorch.nn.SparseEmbedding.from_weight(table)(torch.tensor([1, 1, 0]))
        tensor([[3., 0.],
                [3., 0.],
                [0., 2.]], grad_fn=<ViewBackward0>)
    """

    @created_by_sparsify
    def __init__(self, table: SparseLinear, padding_idx: int | None = None) -> None:
        super().__init__()
        self.table = table
        self.padding_idx = padding_idx

    @classmethod
    def from_weight(cls, weight: SparseTensor, padding_idx: int | None = None) -> SparseEmbedding:
        """Return an embedding with this sparse table, which is converted to ``csr``.

        Args:
            weight: the table, one row per embedding.
            padding_idx: the index whose row gets no gradient.
        """
        rows = weight.to_format("csr")
        assert isinstance(rows, SparseTensor)
        return cls(SparseLinear.from_weight(rows), padding_idx)

    @property
    def weight(self) -> SparseTensor:
        """The table as a ``SparseTensor``, connected to its trained values."""
        return self.table.weight

    @weight.setter
    def weight(self, weight: SparseTensor) -> None:
        refuse_weight(self)

    @property
    def num_embeddings(self) -> int:
        """The number of embeddings."""
        return self.table.out_features

    @property
    def embedding_dim(self) -> int:
        """The size of an embedding."""
        return self.table.in_features

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the rows at the indices ``input``, of shape ``(*input.shape, embedding_dim)``.

        Raises:
            CallError: the indices are not integers.
            IndexRangeError: an index is out of range.
        """
        if input.is_floating_point() or input.is_complex() or input.dtype == torch.bool:
            raise CallError(f"indices must be integers, but got {input.dtype}")
        pattern = self.table.pattern
        pos, columns = pattern.pos[-1], pattern.crd[-1]
        assert pos is not None and columns is not None
        padding = None if self.padding_idx is None else self.padding_idx % self.num_embeddings
        gather = torch.ops.scorch.embedding if torch.compiler.is_compiling() else _gather_rows
        values: torch.Tensor = self.table.values
        if values.requires_grad and not torch.compiler.is_compiling():
            values = values_of(self.table.weight)  # whose gradient follows the pattern of the table
        rows: torch.Tensor = gather(input, pos, columns, values, self.embedding_dim, padding)
        return rows

    def to_dense(self) -> torch.nn.Embedding:
        """Return a ``torch.nn.Embedding`` with the same table."""
        values = self.table.values
        options: dict[str, Any] = {"dtype": values.dtype, "device": values.device}
        layer = torch.nn.Embedding(self.num_embeddings, self.embedding_dim, self.padding_idx, **options)
        with torch.no_grad():
            layer.weight.copy_(self.weight.detach().to_dense())
        return layer

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Accept a dense table, too, of which only the stored elements are loaded."""
        if (weight := state_dict.pop(f"{prefix}weight", None)) is not None:
            state_dict[f"{prefix}table.weight"] = weight
        super()._load_from_state_dict(state_dict, prefix, *args)


@operator(
    "embedding(Tensor input, Tensor pos, Tensor columns, Tensor values, SymInt size, int? padding) -> Tensor",
    lambda input, pos, columns, values, size, padding: values.new_empty((*input.shape, size)),
)
def _gather_rows(
    input: torch.Tensor,
    pos: torch.Tensor,
    columns: torch.Tensor,
    values: torch.Tensor,
    size: int,
    padding: int | None,
) -> torch.Tensor:
    """Gather the rows numbered by ``input`` of a csr matrix with ``size`` columns."""
    with untracked():
        indices = input.reshape(-1).to(torch.int64)
        rows = pos.numel() - 1
        if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < rows:
            raise IndexRangeError(
                f"index out of range: indices must be from 0 to {rows - 1}, but go from "
                f"{int(indices.min())} to {int(indices.max())}"
            )
        begin = pos[indices].to(torch.int64)
        lengths = pos[indices + 1].to(torch.int64) - begin
        ends = lengths.cumsum(0)
        lookup = torch.arange(indices.numel(), device=indices.device).repeat_interleave(lengths)
        source = torch.arange(lookup.numel(), device=indices.device) + (begin - ends + lengths)[lookup]
        target = lookup * size + columns[source]
    if padding is not None:  # its row gets no gradient
        is_trained = indices[lookup] != padding
        picked = torch.where(is_trained, values[source], values.detach()[source])
    else:
        picked = values[source]
    output = picked.new_zeros(indices.numel() * size).scatter(0, target, picked)
    return output.view(*input.shape, size)


entry(_gather_rows).stand_in = lambda input, pos, columns, values, size, padding: values.new_zeros(()).expand(
    *input.shape, size
)
