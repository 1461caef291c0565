"""
A graph convolutional network on Cora
=====================================

Classify papers by their words and citations with two graph convolutions. Words and citations are sparse
matrices throughout, including dropout. Ends with a table of accuracy and time, compared with the same
network in ``torch.sparse``.

Run it with ``python examples/gcn_cora.py --data DIR --plot gcn.png``.

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

parser = argparse.ArgumentParser(description="GCN on Cora")
parser.add_argument("--data", type=Path, metavar="DIR", help="folder with planetoid/cora.npz")
parser.add_argument("--quick", action="store_true", help="a few epochs")
parser.add_argument("--plot", metavar="FILE", help="save the plot")
options = parser.parse_args()
epochs = 50 if options.quick else 200
torch.manual_seed(0)

# %%
# The graph
# ---------
# Read from a file of NumPy arrays, or synthetic: papers cite and share words mostly within their class.

if options.data is not None:
    with np.load(options.data / "planetoid" / "cora.npz") as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files}
    graph, words = (
        scorch.sparse_csr_tensor(
            arrays[f"{part}_indptr"],
            arrays[f"{part}_indices"],
            arrays.get(f"{part}_data", torch.ones(arrays[f"{part}_indices"].numel())),
            arrays[f"{part}_shape"].tolist(),
        )
        for part in ("adj", "x")
    )
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
    words = scorch.from_edge_index(torch.stack([paper, word]), size=(2708, 1433), format="csr")
    train, test = torch.randperm(2708)[:1140].split([140, 1000])
x = words / words.sum(1, keepdim=True).to_dense().clamp(min=1)  # word frequencies: still sparse
print(f"{graph.shape[0]:,} papers, {graph.nnz:,} directed citations, {x.nnz:,} words of {x.shape[1]:,}")


# %%
# Two networks
# ------------
# ``scorch.nn.GCNConv`` has the same parameters and results as PyG's; it accepts the graph and sparse
# features directly. The other network uses ``torch.sparse``: the graph is normalized by hand, dropout is
# applied to the values, and both matrices are in PyTorch's COO layout, in which it trains faster than in
# CSR.


class GCN(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = scorch.nn.GCNConv(x.shape[1], 16), scorch.nn.GCNConv(16, int(y.max()) + 1)

    def forward(self, x: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
        hidden = self.first(F.dropout(x, 0.5, self.training), graph).relu()
        return self.second(F.dropout(hidden, 0.5, self.training), graph)


class TorchGCN(GCN):
    def forward(self, x: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
        values = F.dropout(x.values(), 0.5, self.training)
        x = torch.sparse_coo_tensor(x.indices(), values, x.shape, is_coalesced=True)
        hidden = torch.sparse.mm(x, self.first.lin.weight.t())
        hidden = (torch.sparse.mm(graph, hidden) + self.first.bias).relu()
        hidden = F.dropout(hidden, 0.5, self.training) @ self.second.lin.weight.t()
        return torch.sparse.mm(graph, hidden) + self.second.bias


looped = graph + scorch.eye(graph.shape[0], format="csr")
scale = looped.sum(1).to_dense().rsqrt()
normalized = (scale[:, None] * looped * scale).to_format("coo").to_torch()

# %%
# Train both
# ----------
# They start with the same weights and the same seed, and so drop the same values. Before training, both give
# the same results.

models = {
    "scorch": (GCN(), x, graph),
    "torch.sparse": (TorchGCN(), x.to_format("coo").to_torch(), normalized),
}
models["torch.sparse"][0].load_state_dict(models["scorch"][0].state_dict())
before = [model.eval()(features, matrix) for model, features, matrix in models.values()]
torch.testing.assert_close(before[0], before[1], rtol=1e-4, atol=1e-5)
print("both networks agree before training")

losses = {}
print(f"\n{'':14} {'loss':>6} {'test accuracy':>14} {'per epoch':>12}")
for name, (model, features, matrix) in models.items():
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    losses[name], times = [], []
    torch.manual_seed(1)
    for _ in range(epochs):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(model.train()(features, matrix)[train], y[train])
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
        losses[name].append(loss.item())
    right = model.eval()(features, matrix)[test].argmax(1) == y[test]
    print(f"{name:14} {loss:>6.3f} {right.float().mean():>14.1%} {np.median(times) * 1e3:>9.2f} ms")

# %%
# Papers sorted by class: most citations stay within one class. The losses of both networks are the same.

figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained", width_ratios=[1, 1.2])
order = y.argsort()
scorch.spy(graph[order][:, order], axes[0], cells=200)
axes[0].set(title="citations, papers sorted by class", xlabel="cited paper", ylabel="citing paper")
for name, values in losses.items():
    axes[1].plot(values, "-" if name == "scorch" else "--", label=name)
axes[1].set(xlabel="epoch", ylabel="training loss")
axes[1].legend()
if options.plot:
    figure.savefig(options.plot, dpi=120)
