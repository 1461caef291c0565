"""``scorch.utils.data``: all of ``torch.utils.data``, and datasets of the rows of sparse matrices."""

from scorch._src.io.datasets import SparseDataset
from scorch._src.io.mapped_rows import MemmapSparseDataset
from scorch._src.io.row_writer import RowWriter

__all__ = ["MemmapSparseDataset", "RowWriter", "SparseDataset"]
