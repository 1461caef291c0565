"""What the user holds: sparse tensors, how they are made and shown."""

from scorch.tensor import (  # noqa: F401 - they fill the tables of torch
    handlers,
    operators,
    samples,
    saved,
    torch_names,
)
from scorch.tensor.sparse_tensor import SparseTensor
from scorch.tensor.storage import Pattern, Storage

__all__ = ["Pattern", "SparseTensor", "Storage"]
