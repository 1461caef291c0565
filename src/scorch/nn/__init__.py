"""``scorch.nn``: all of ``torch.nn``, and layers that have sparse weights or work on sparse tensors."""

from scorch.nn.autoencoder import TopKAutoencoder
from scorch.nn.inputs import Linear, SparseEmbeddingBag
from scorch.nn.linear import SparseLinear
from scorch.nn.moe import MoE, TopKGate

__all__ = ["Linear", "MoE", "SparseEmbeddingBag", "SparseLinear", "TopKAutoencoder", "TopKGate"]
