"""
A graph network on several processes
====================================

Nodes are sharded over ranks, and each rank fetches the features of neighbors on other ranks, its halo: two
graph convolutions are trained on a graph that no single process holds. Ends with the accuracy, the bytes
that one epoch communicated, and the bytes that gathering all features would have communicated.

Run it with ``torchrun --nproc-per-node 4 examples/distributed_gcn.py``, or in one process with
``python examples/distributed_gcn.py``: the losses are the same.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.nn.functional as F

import scorch
import scorch.distributed as sd

parser = argparse.ArgumentParser(description="GCN over several processes")
parser.add_argument("--nodes", type=int, default=4000)
parser.add_argument("--quick", action="store_true", help="a few epochs")
parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="save here, and resume from here")
options, _ = parser.parse_known_args()
epochs = 10 if options.quick else 60
torch.manual_seed(0)

mesh = sd.init() if "RANK" in os.environ else None  # torchrun sets the rank
rank, world = (sd.get_rank(), sd.get_world_size()) if mesh is not None else (0, 1)

# %%
# The graph
# ---------
# The nodes belong to communities, and most edges connect nodes of the same community. Every rank draws the
# same graph here; for a large graph, each would read its own rows from files (``sd.load_rows``).

nodes, classes, features = options.nodes, 8, 32
y = torch.randint(classes, (nodes,))
edges = torch.randint(nodes, (2, 6 * nodes))
friends = torch.argsort(y)[torch.randint(nodes // classes, (6 * nodes,)) + y[edges[0]] * (nodes // classes)]
edges[1] = torch.where(torch.rand(6 * nodes) < 0.8, friends, edges[1])
edges = torch.cat([edges, edges.flip(0)], 1)
graph = scorch.from_edge_index(edges, size=nodes, format="csr").clamp(max=1)
x = F.one_hot(y, features).float() + 1.5 * torch.randn(nodes, features)

# %%
# Sharding
# --------
# Rows are divided into shards with about the same amount of work, and reordered so that most neighbors are
# on the same rank. Then the graph is normalized across all ranks, and each rank keeps the features and
# classes of its nodes, on the device of the mesh: one GPU per rank if there are any.

A = sd.shard(graph, mesh)
if world > 1:
    A = sd.partition(A, "label", features=[features, 16, classes])
A = sd.normalize(A, 1.0)
own_x, own_y = A.rows_of(x), A.rows_of(y)
print(A)

# %%
# Training
# --------
# The layers are those for a single process. ``sd.mean`` is the mean over all nodes, and dropout is drawn
# per node, so the number of ranks only affects the order of summation.


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = scorch.nn.GCNConv(features, 16, normalize=False)
        self.second = scorch.nn.GCNConv(16, classes, normalize=False)

    def forward(self, x: torch.Tensor, graph: sd.RowSharded, seed: int) -> torch.Tensor:
        hidden = F.relu(self.first(x, graph))
        return self.second(sd.dropout(hidden, 0.3, graph, seed, self.training), graph)


model = Network().to(A.device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
begin = 0
if options.checkpoint is not None and options.checkpoint.exists():  # torchrun has restarted this job
    state = sd.load(options.checkpoint, mesh)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    begin = state["epoch"]
received = 0
for epoch in range(begin, epochs):
    optimizer.zero_grad()
    with sd.count_bytes() as traffic:
        loss = sd.mean(F.cross_entropy(model(own_x, A, epoch), own_y, reduction="none"), mesh)
        loss.backward()
    received = traffic.received
    sd.sum_gradients(model.parameters(), mesh)
    optimizer.step()
    if rank == 0 and epoch % 10 == 0:
        print(f"epoch {epoch:3d}  loss {loss.item():.5f}")
    if options.checkpoint is not None and epoch % 10 == 9:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
        sd.save(state, options.checkpoint, mesh)

# %%
# Communication
# -------------

model.eval()
with torch.no_grad():
    accuracy = sd.mean((model(own_x, A, 0).argmax(1) == own_y).float(), mesh)
gathered = 2 * (16 + classes) * 4 * (nodes - A.rows.own)
if rank == 0:
    print(f"accuracy {accuracy.item():.3f} with {world} {'process' if world == 1 else 'processes'}")
    print(f"this process received {received:,} bytes per epoch; gathering all features: {gathered:,}")
if mesh is not None:
    sd.destroy_process_group()
