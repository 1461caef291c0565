"""``scorch.nn``: all of ``torch.nn``, and layers that have sparse weights or work on sparse tensors."""

from scorch.nn import data_parallel, masks
from scorch.nn.autoencoder import TopKAutoencoder
from scorch.nn.dynamic import SET, RigL
from scorch.nn.embedding import SparseEmbedding
from scorch.nn.graph import GCNConv, GINConv, SAGEConv
from scorch.nn.graph_attention import GATConv
from scorch.nn.inputs import Linear, SparseEmbeddingBag
from scorch.nn.linear import SparseLinear
from scorch.nn.loading import load_sparse
from scorch.nn.moe import MoE, TopKGate
from scorch.nn.multihead_attention import MultiheadAttention
from scorch.nn.prune import erdos_renyi_densities

__all__ = [
    "SET",
    "GATConv",
    "GCNConv",
    "GINConv",
    "Linear",
    "MoE",
    "MultiheadAttention",
    "RigL",
    "SAGEConv",
    "SparseEmbedding",
    "SparseEmbeddingBag",
    "SparseLinear",
    "TopKAutoencoder",
    "TopKGate",
    "erdos_renyi_densities",
    "load_sparse",
    "masks",
]

data_parallel.install()
