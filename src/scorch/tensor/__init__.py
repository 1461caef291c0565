"""What the user holds: sparse tensors, how they are made and shown."""

from scorch.tensor import handlers, operators, torch_names  # noqa: F401 - they fill the table of torch functions
from scorch.tensor.sparse_tensor import SparseTensor
from scorch.tensor.storage import Pattern, Storage

__all__ = ["Pattern", "SparseTensor", "Storage"]
