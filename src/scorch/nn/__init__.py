"""``scorch.nn``: all of ``torch.nn``, and layers that have sparse weights or work on sparse tensors."""

from scorch.nn import masks
from scorch.nn.autoencoder import TopKAutoencoder
from scorch.nn.graph import GCNConv, GINConv, SAGEConv
from scorch.nn.graph_attention import GATConv
from scorch.nn.inputs import Linear, SparseEmbeddingBag
from scorch.nn.linear import SparseLinear
from scorch.nn.moe import MoE, TopKGate
from scorch.nn.multihead_attention import MultiheadAttention

__all__ = [
    "GATConv",
    "GCNConv",
    "GINConv",
    "Linear",
    "MoE",
    "MultiheadAttention",
    "SAGEConv",
    "SparseEmbeddingBag",
    "SparseLinear",
    "TopKAutoencoder",
    "TopKGate",
    "masks",
]
