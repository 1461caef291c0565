"""``scorch.nn``: all of ``torch.nn``, and layers that have sparse weights or work on sparse tensors."""

from scorch.nn.graph import GCNConv, GINConv, SAGEConv
from scorch.nn.graph_attention import GATConv

__all__ = ["GATConv", "GCNConv", "GINConv", "SAGEConv"]
