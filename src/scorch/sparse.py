"""``scorch.sparse``: all of ``torch.sparse``, and functions of it that make sparse tensors of Scorch."""

from scorch.ops.sparse_functions import spdiags

__all__ = ["spdiags"]
