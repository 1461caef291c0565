"""``scorch.utils.data``: all of ``torch.utils.data``, and datasets of the rows of sparse matrices."""

from scorch.tensor.mapped import MappedRows
from scorch.tensor.row_writer import RowWriter
from scorch.tensor.samples import SparseRows

__all__ = ["MappedRows", "RowWriter", "SparseRows"]
