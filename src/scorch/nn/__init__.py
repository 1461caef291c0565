"""``scorch.nn``: all of ``torch.nn``, and layers that have sparse weights or work on sparse tensors."""

from scorch.nn import masks
from scorch.nn.multihead_attention import MultiheadAttention

__all__ = ["MultiheadAttention", "masks"]
