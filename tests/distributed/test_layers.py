"""Graph layers on a sharded graph are those of one process: outputs, gradients, means and dropout."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist

import scorch
import scorch.distributed as sd
from processes import in_processes

NODES, FEATURES, CLASSES = 23, 6, 4


def make_graph() -> scorch.SparseTensor:
    generator = torch.Generator().manual_seed(1)
    weights = torch.rand(NODES, NODES, generator=generator, dtype=torch.float64)
    dense = torch.where(weights > 0.8, weights, 0.0)
    dense[:, 5] = 0.5  # a node that everyone knows
    return scorch.from_torch(dense, format="csr")


def make_layers() -> dict[str, torch.nn.Module]:
    torch.manual_seed(2)
    wide = torch.nn.Linear(FEATURES, CLASSES)
    layers = {
        "GCN": scorch.nn.GCNConv(FEATURES, CLASSES),
        "GCN that widens": scorch.nn.GCNConv(FEATURES, 3 * FEATURES),
        "SAGE": scorch.nn.SAGEConv(FEATURES, CLASSES),
        "SAGE of maxima": scorch.nn.SAGEConv(FEATURES, CLASSES, aggr="max"),
        "GIN": scorch.nn.GINConv(wide, train_eps=True),
        "GAT": scorch.nn.GATConv(FEATURES, CLASSES, heads=2),
    }
    return {name: layer.double() for name, layer in layers.items()}


def compare_layers(rank: int) -> None:
    S = make_graph()
    A = sd.shard(S, rows=[0, 4, 4, NODES] if dist.get_world_size() == 3 else None)
    generator = torch.Generator().manual_seed(3)
    features = torch.rand(NODES, FEATURES, generator=generator, dtype=torch.float64)
    for name, layer in make_layers().items():
        whole, here = features.clone().requires_grad_(), A.rows_of(features).clone().requires_grad_()
        wanted = layer(whole, S).tanh().pow(2).sum(1).mean()
        wanted.backward()
        own = copy.deepcopy(layer)
        own.zero_grad()
        model = sd.replicate(own) if name == "GCN" else own
        found = sd.mean(model(here, A).tanh().pow(2).sum(1))
        found.backward()
        if name != "GCN":
            sd.sum_gradients(own.parameters())
        torch.testing.assert_close(found, wanted, msg=name)
        torch.testing.assert_close(here.grad, A.rows_of(whole.grad), msg=name)
        for one, other in zip(own.parameters(), layer.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, msg=name)
    one = sd.dropout(A.rows_of(features), 0.4, A, seed=7)
    alone = sd.shard(S, dist.new_group([rank], use_local_synchronization=True))
    everything = sd.dropout(features, 0.4, alone, seed=7)
    assert torch.equal(one, A.rows_of(everything))
    assert 0.2 < float((everything == 0).double().mean()) < 0.6
    drop_attention(A, alone, features)


def drop_attention(A: sd.RowSharded, alone: sd.RowSharded, features: torch.Tensor) -> None:
    """GAT drops the same edges whatever the number of processes and the order of rows, to any derivative."""
    torch.manual_seed(4)
    layer = scorch.nn.GATConv(FEATURES, CLASSES, heads=2, dropout=0.5).double()
    found = []
    for graph in (alone, A, sd.partition(A, "hash")):
        torch.manual_seed(5 if graph is alone else 5 + dist.get_rank())  # the first process draws
        x = graph.rows_of(features).clone().requires_grad_()
        y = layer(x, graph)
        (gradient,) = torch.autograd.grad(sd.mean(y.tanh().sum(1), graph.group), x)
        found.append((graph, y, gradient))
    (_, whole, gradients), *others = found
    for graph, y, gradient in others:
        torch.testing.assert_close(y, graph.rows_of(whole))
        torch.testing.assert_close(gradient, graph.rows_of(gradients))
    layer.eval()
    assert not torch.equal(layer(features, alone), whole)


def test_layers_on_a_sharded_graph(tmp_path):
    in_processes(compare_layers, tmp_path, 3)


def learn_entries(rank: int) -> None:
    """The optimizer of each process's entries goes the steps of one process."""
    S = make_graph()
    A = sd.shard(S).requires_grad_()
    whole = S.detach().clone().requires_grad_()
    features = torch.rand(NODES, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    optimizers = torch.optim.Adam([A.local], lr=0.1), torch.optim.Adam([whole], lr=0.1)
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        sd.mean((A @ A.columns_of(features)).tanh().sum(1)).backward()
        (whole @ features).tanh().sum(1).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(A.detach().gather().to_dense(), whole.detach().to_dense())
    assert A.local.layout == whole.layout and A.local.grad.nnz == A.local.nnz


def test_optimizers_of_sharded_entries(tmp_path):
    in_processes(learn_entries, tmp_path, 2)
