"""``scorch.utils.data``: all of ``torch.utils.data``, and datasets of the rows of sparse matrices."""

from scorch._src.io.datasets import SparseRows
from scorch._src.io.mapped_rows import MappedRows
from scorch._src.io.row_writer import RowWriter

__all__ = ["MappedRows", "RowWriter", "SparseRows"]
