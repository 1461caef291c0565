"""``scorch.nn``: all of ``torch.nn``, and layers that have sparse weights or work on sparse tensors."""

from scorch.nn.linear import SparseLinear

__all__ = ["SparseLinear"]
