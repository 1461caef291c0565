"""
Graph attention weights
=======================

``GATConv`` learns how important each neighbor of a paper is. It is trained on Cora; then its attention
weights are computed as a sparse matrix with one nonzero per citation, and plotted around one paper.

Run it with ``python examples/gat.py --data DIR --plot gat.png``.

``DIR`` contains ``planetoid/cora.npz``. Without it, the graph is synthetic and has the same size.
"""

import argparse
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F

import scorch

parser = argparse.ArgumentParser(description="Graph attention on Cora")
parser.add_argument("--data", type=Path, metavar="DIR", help="folder with planetoid/cora.npz")
parser.add_argument("--quick", action="store_true", help="a few epochs")
parser.add_argument("--plot", metavar="FILE", help="save the plot")
options = parser.parse_args()
epochs = 5 if options.quick else 100
torch.manual_seed(0)

# %%
# The graph
# ---------
# It is the same as in the example of graph convolutions.

if options.data is not None:
    with np.load(options.data / "planetoid" / "cora.npz") as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files}
    ones = torch.ones(arrays["adj_indices"].numel())
    graph = scorch.sparse_csr_tensor(arrays["adj_indptr"], arrays["adj_indices"], ones, [2708, 2708])
    stored = arrays["x_indptr"], arrays["x_indices"], arrays["x_data"]
    x = scorch.sparse_csr_tensor(*stored, [2708, 1433])
    y, train, test = (arrays[name].long() for name in ("y", "train_idx", "test_idx"))
else:
    print("No --data given: using a synthetic graph of Cora's size, not Cora.")
    y = torch.randint(7, (2708,)).sort().values
    cited = torch.randint(2708, (2, 5278))
    sizes = y.bincount()
    near = (sizes.cumsum(0) - sizes)[y[cited[0]]] + (torch.rand(5278) * sizes[y[cited[0]]]).long()
    cited[1] = torch.where(torch.rand(5278) < 0.8, near, cited[1])  # mostly in the same class
    cited = cited[:, cited[0] != cited[1]]
    graph = scorch.from_edge_index(torch.cat([cited, cited.flip(0)], 1), size=2708, format="csr").clamp(max=1)
    paper = torch.arange(2708).repeat_interleave(18)
    own = y[paper] * 204 + torch.randint(204, paper.shape)
    word = torch.where(torch.rand(paper.shape) < 0.3, own, torch.randint(1433, paper.shape))
    x = scorch.from_edge_index(torch.stack([paper, word]), size=(2708, 1433), format="csr")
    train, test = torch.randperm(2708)[:1140].split([140, 1000])
x = x / x.sum(1, keepdim=True).to_dense().clamp(min=1)

# %%
# Train
# -----
# The first layer has eight heads, the second has one. The scores, the softmax and the weighted sum of each
# layer are one kernel: no intermediate result has an element per edge and feature.


class GAT(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = scorch.nn.GATConv(1433, 8, heads=8, dropout=0.6)
        self.second = scorch.nn.GATConv(64, 7, heads=1, dropout=0.6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.elu(self.first(F.dropout(x, 0.6, self.training), graph))
        return self.second(F.dropout(hidden, 0.6, self.training), graph)


model = GAT()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
start = time.perf_counter()
for epoch in range(1, epochs + 1):
    optimizer.zero_grad()
    loss = F.cross_entropy(model.train()(x)[train], y[train])
    loss.backward()
    optimizer.step()
    if epoch % 20 == 0:
        spent = (time.perf_counter() - start) / epoch
        print(f"epoch {epoch}: loss {loss.item():.3f}, {spent * 1e3:.1f} ms per epoch")
with torch.no_grad():
    right = model.eval()(x)[test].argmax(1) == y[test]
print(f"test accuracy {right.float().mean():.1%}")

# %%
# The weights as a sparse matrix
# ------------------------------
# Compute a score for each citation (and each paper itself), then a softmax over the stored elements of each
# row. Multiplied by the features, they must give the output of the layer.

with torch.no_grad():
    layer = model.second
    hidden = layer.lin(F.elu(model.first(x, graph)))
    of_source, of_target = (hidden * layer.att_src[0, 0]).sum(1), (hidden * layer.att_dst[0, 0]).sum(1)
    pairs = graph + scorch.eye(2708, format="csr")
    scores = scorch.einsum("ij,j->ij", pairs, of_source) + scorch.einsum("ij,i->ij", pairs, of_target)
    weights = torch.sparse.softmax(F.leaky_relu(scores, 0.2), 1)
    torch.testing.assert_close(weights @ hidden + layer.bias, model(x), rtol=1e-4, atol=1e-5)
print(f"{weights.nnz:,} weights of {weights.numel():,} pairs; they agree with the layer")

# %%
# One paper and its neighbors
# ---------------------------
# The paper with the most uneven weights is in the center; line width shows the weight. On the right are all
# weights, relative to uniform attention.

degree = graph.sum(1).to_dense()
uneven = weights.amax(1).to_dense() * (degree + 1)  # 1 for uniform attention
center = int(torch.where((degree >= 8) & (degree <= 16), uneven, torch.zeros(())).argmax())
row = weights[center].to_format("coo")
neighbors, shares = row.indices()[0], row.values()
colors = plt.get_cmap("tab10")(y.numpy())
figure, axes = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
angles = np.linspace(0, 2 * np.pi, len(neighbors), endpoint=False)
for node, share, angle in zip(neighbors.tolist(), shares.tolist(), angles, strict=True):
    place = (0, 0) if node == center else (np.cos(angle), np.sin(angle))
    axes[0].plot([0, place[0]], [0, place[1]], color="0.5", linewidth=40 * share, zorder=1)
    axes[0].scatter(*place, s=900 if node == center else 500, color=colors[node], edgecolor="black", zorder=2)
    axes[0].annotate(f"{share:.2f}", place, ha="center", va="center", fontsize=8, zorder=3)
axes[0].set(
    title=f"weights around paper {center}; colors are classes",
    xlim=(-1.2, 1.2),
    ylim=(-1.2, 1.2),
    aspect="equal",
)
axes[0].set_axis_off()
even = 1 / (degree + 1)
rows = torch.arange(2708).repeat_interleave((degree + 1).long())
axes[1].hist((weights.values() / even[rows]).numpy(), bins=60, range=(0.4, 1.6), color="tab:blue")
axes[1].axvline(1, color="black", linestyle=":", label="uniform attention")
axes[1].set(title="all weights", xlabel="weight times the number of neighbors", ylabel="citations")
axes[1].legend()
if options.plot:
    figure.savefig(options.plot, dpi=120)
