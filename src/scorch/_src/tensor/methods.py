"""Methods of sparse tensors that other modules implement, attached to the class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from scorch._src.grad_state import is_grad_enabled, is_transformed
from scorch._src.tensor import torch_methods
from scorch._src.tensor.flatten import TracedStorage
from scorch._src.tensor.interop import graphs, layouts_autograd, torch_layouts
from scorch._src.tensor.show.display import describe
from scorch._src.tensor.show.spy import to_html
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import any_requires_grad

if TYPE_CHECKING:
    import scipy.sparse

# other forms -----------------------------------------------------------------------------------------


def to_torch(self: SparseTensor) -> torch.Tensor:
    """Convert to one of torch's own layouts: COO, CSR, CSC, BSR or BSC where the format is one, else COO."""
    is_connected = is_grad_enabled() and any_requires_grad(self) and not is_transformed()
    return layouts_autograd.to_torch(self) if is_connected else torch_layouts.to_torch(self)


def to_scipy(self: SparseTensor) -> scipy.sparse.sparray:
    """Convert to a SciPy array, for matrices and vectors."""
    return torch_layouts.to_scipy(self)


# changed entries -------------------------------------------------------------------------------------


def eliminate_zeros(self: SparseTensor) -> SparseTensor:
    """Return the same tensor without the zeros among its stored values."""
    return torch_methods.eliminate_zeros(self)


def setdiag(self: SparseTensor, values: Any, k: int = 0) -> SparseTensor:
    """Return this matrix with diagonal ``k`` set to a number or a list; a short list sets its beginning."""
    return torch_methods.setdiag(self, values, k)


# graphs, with the names of torch_sparse --------------------------------------------------------------


def coo(self: SparseTensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return row, column (int64) and value of every entry of a matrix, row by row."""
    return graphs.coo(self)


def csr(self: SparseTensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return row pointers, columns (int64) and values of a matrix."""
    return graphs.csr(self)


def csc(self: SparseTensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return column pointers, rows (int64) and values of a matrix."""
    return graphs.csc(self)


def sparse_sizes(self: SparseTensor) -> tuple[int, int]:
    """Return the numbers of rows and columns."""
    return graphs.sparse_sizes(self)


def sparse_size(self: SparseTensor, dim: int) -> int:
    """Return the number of rows (0) or columns (1)."""
    return graphs.sparse_sizes(self)[dim]


def to_edge_index(self: SparseTensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the edges of a graph, a column (source, target) for each, and their weights."""
    row, column, value = graphs.coo(self)
    return torch.stack([row, column]), value


def to_networkx(self: SparseTensor, create_using: Any = None, weight: str = "weight") -> Any:
    """Convert to a directed graph of networkx, or one of the kind of ``create_using``."""
    return graphs.to_networkx(self, create_using, weight)


# Python ----------------------------------------------------------------------------------------------


def __repr__(self: SparseTensor, *, tensor_contents: str | None = None) -> str:  # noqa: N807
    if isinstance(self.storage, TracedStorage):
        return f"SparseTensor(shape={tuple(self.shape)}, format={self.format}, traced)"
    return describe(self.storage)


def _repr_html_(self: SparseTensor) -> str:
    return to_html(self)


for _method in (
    to_torch, to_scipy, eliminate_zeros, setdiag, coo, csr, csc, sparse_sizes, sparse_size, to_edge_index,
    to_networkx, __repr__, _repr_html_,
):  # fmt: skip
    _method.__qualname__ = f"SparseTensor.{_method.__name__}"
    setattr(SparseTensor, _method.__name__, _method)
