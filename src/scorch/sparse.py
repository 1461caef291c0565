"""``scorch.sparse``: all of ``torch.sparse``, and functions of it that make sparse tensors of Scorch."""

from scorch._src.ops.torch_sparse import spdiags

__all__ = ["spdiags"]
