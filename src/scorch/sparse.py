"""``scorch.sparse``: all of ``torch.sparse``, and its constructors, which return sparse tensors of Scorch."""

from scorch._src.ops.torch_sparse import spdiags

__all__ = ["spdiags"]
