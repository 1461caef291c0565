"""``scorch.nn``: all of ``torch.nn``, and layers that have sparse weights or work on sparse tensors."""

from scorch._src.nn import masks
from scorch._src.nn.autoencoder import TopKAutoencoder
from scorch._src.nn.dynamic_sparsity import SET, RigL
from scorch._src.nn.graph.edge_attention_layers import GATv2Conv, TransformerConv
from scorch._src.nn.graph.graph_attention_layer import GATConv
from scorch._src.nn.graph.graph_layers import GCNConv, GINConv, SAGEConv
from scorch._src.nn.graph.hetero_conv import HeteroConv
from scorch._src.nn.graph.propagation_layers import APPNP, SGConv
from scorch._src.nn.loading import load_sparse
from scorch._src.nn.moe import MoE, TopKGate
from scorch._src.nn.multihead_attention import MultiheadAttention
from scorch._src.nn.prune import erdos_renyi_densities
from scorch._src.nn.pruned.sparse_attention import SparseMultiheadAttention
from scorch._src.nn.pruned.sparse_conv import SparseConv1d, SparseConv2d
from scorch._src.nn.pruned.sparse_recurrent import SparseGRU, SparseLSTM, SparseRNN
from scorch._src.nn.sparse_embedding import SparseEmbedding
from scorch._src.nn.sparse_inputs import Linear, SparseEmbeddingBag
from scorch._src.nn.sparse_linear import SparseLinear

__all__ = [
    "APPNP",
    "SET",
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "HeteroConv",
    "Linear",
    "MoE",
    "MultiheadAttention",
    "RigL",
    "SAGEConv",
    "SGConv",
    "SparseConv1d",
    "SparseConv2d",
    "SparseEmbedding",
    "SparseEmbeddingBag",
    "SparseGRU",
    "SparseLSTM",
    "SparseLinear",
    "SparseMultiheadAttention",
    "SparseRNN",
    "TopKAutoencoder",
    "TopKGate",
    "TransformerConv",
    "erdos_renyi_densities",
    "load_sparse",
    "masks",
]
