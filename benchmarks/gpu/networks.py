"""Graph networks on a graph of ogbn-arxiv's size: steps of GCN and GraphSAGE, a GAT layer and its gradients.

torch has no such layers: its contestants are written here in the best way that it has, a normalised matrix in
CSR for GCN and GraphSAGE, gathers and sums by ``index_add_`` for the GAT. PyG takes part if it is installed.
Steps are also captured in CUDA graphs, whose replays take the host next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks import graphs
from benchmarks.gpu.cases import OURS, Case, Prepare
from benchmarks.gpu.timing import Call
from benchmarks.graph_data import Data, load
from scorch import nn

HEADS, WIDTH = 8, 16
TOLERANCE = 1e-3  # gradients are long sums


def graph(device: str, directory: Path | None, tiny: bool) -> Data:
    found = load("tiny" if tiny else "arxiv", directory)
    moved = {name: getattr(found, name).to(device) for name in ("edge_index", "x", "y", "train", "test")}
    return replace(found, words=None, **moved)


def with_loops(data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources and targets of all edges, those of each node to itself among them, sorted by targets."""
    nodes = torch.arange(data.nodes, device=data.x.device)
    source, target = torch.cat([data.edge_index, torch.stack([nodes, nodes])], dim=1)
    order = torch.argsort(target * data.nodes + source)
    return source[order], target[order]


# GCN and GraphSAGE -----------------------------------------------------------------------------------


def normalised(data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    """Places and values of the normalised adjacency matrix, which is symmetric."""
    source, target = with_loops(data)
    degree = torch.bincount(target, minlength=data.nodes).double()
    values = (degree[source] * degree[target]).rsqrt()
    return torch.stack([target, source]), values


class Symmetric(torch.autograd.Function):
    """The product with a symmetric matrix: its gradient takes no transposed one."""

    @staticmethod
    def forward(ctx: Any, A: torch.Tensor, X: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.A = A
        return A @ X

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:  # type: ignore[override]
        return None, ctx.A @ gradient


Weights = dict[str, torch.Tensor]
Product = Callable[[torch.Tensor], torch.Tensor]
MakeStep = Callable[[Callable[[], torch.Tensor], list[torch.Tensor]], Call]
WARM_STEPS = 3  # before a step is captured


def gcn(device: str, directory: Path | None, tiny: bool) -> Iterator[Case]:
    data = graph(device, directory, tiny)

    def forward(x: torch.Tensor, own: Weights, product: Product) -> torch.Tensor:
        hidden = product(x @ own["first.lin.weight"].T) + own["first.bias"]
        return product(hidden.relu() @ own["second.lin.weight"].T) + own["second.bias"]

    yield from _training("gcn", "GCN", data, device, normalised(data), forward, is_symmetric=True)


def sage(device: str, directory: Path | None, tiny: bool) -> Iterator[Case]:
    """Measure a training step of GraphSAGE with means of neighbors."""
    data = graph(device, directory, tiny)

    def forward(x: torch.Tensor, own: Weights, product: Product) -> torch.Tensor:
        for name in ("first", "second"):
            mixed = product(x) @ own[f"{name}.lin_l.weight"].T + own[f"{name}.lin_l.bias"]
            x = mixed + x @ own[f"{name}.lin_r.weight"].T
            x = x.relu() if name == "first" else x
        return x

    yield from _training("sage", "SAGE mean", data, device, averaged(data), forward)


def averaged(data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    """Places and values of the matrix that takes the means of neighbors, sorted by targets."""
    source, target = data.edge_index
    order = torch.argsort(target * data.nodes + source)
    degree = torch.bincount(target, minlength=data.nodes).double()
    return torch.stack([target, source])[:, order], degree[target[order]].reciprocal()


def _training(
    section: str,
    kind: str,
    data: Data,
    device: str,
    matrix: tuple[torch.Tensor, torch.Tensor],
    forward: Callable[[torch.Tensor, Weights, Product], torch.Tensor],
    is_symmetric: bool = False,
) -> Iterator[Case]:
    """A training step of a network, also captured; torch's way is ``forward`` with products by ``matrix``."""
    with torch.device(device):
        torch.manual_seed(0)
        weights = graphs.Network(nn, kind, data).state_dict()
    (places, values), shape = matrix, (data.nodes, data.nodes)

    def library(name: str, make_step: MakeStep) -> Prepare:
        """One of the contestants that ``benchmarks.graphs`` has for the processor."""

        def prepare() -> Call:
            with torch.device(device):
                network, x, given = graphs.contestants(kind, data)[name]()
            network.load_state_dict(weights)
            return make_step(lambda: network(x, given), list(network.parameters()))

        return prepare

    def by_hand(product: Product, dtype: torch.dtype, make_step: MakeStep) -> Call:
        own = {name: weight.to(dtype, copy=True).requires_grad_() for name, weight in weights.items()}
        x = data.x.to(dtype)
        return make_step(lambda: forward(x, own, product), list(own.values()))

    def step(
        forward: Callable[[], torch.Tensor], parameters: list[torch.Tensor], is_captured: bool = False
    ) -> Call:
        optimizer = torch.optim.Adam(parameters, lr=0.01, capturable=is_captured)
        target = data.y[data.train]

        def run() -> list[torch.Tensor]:
            optimizer.zero_grad()
            out = forward()
            F.cross_entropy(out[data.train], target).backward()
            optimizer.step()
            return [out, *(weight.grad for weight in parameters if weight.grad is not None)]

        return Call(run)

    def captured(forward: Callable[[], torch.Tensor], parameters: list[torch.Tensor]) -> Call:
        """The same step, captured in a CUDA graph; its first replay begins with the weights given."""
        call, begin = step(forward, parameters, True), [each.detach().clone() for each in parameters]
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_STEPS):
                call()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            results = call()
        with torch.no_grad():
            for parameter, first in zip(parameters, begin, strict=True):
                parameter.copy_(first)

        def replay(kept: Call = call) -> list[torch.Tensor]:  # the graph reads and writes its memory
            graph.replay()
            return results

        return Call(replay)

    def in_torch(layout: str, symmetric: bool, make_step: MakeStep = step) -> Prepare:
        def prepare() -> Call:
            A = torch.sparse_coo_tensor(places, values.float(), shape, is_coalesced=True)
            if layout == "CSR":
                A = A.to_sparse_csr()
                arrays = A.crow_indices().int(), A.col_indices().int(), A.values()
                A = torch.sparse_csr_tensor(*arrays, shape)
            if symmetric:
                return by_hand(lambda X: Symmetric.apply(A, X), torch.float32, make_step)
            return by_hand(lambda X: A @ X, torch.float32, make_step)

        return prepare

    def reference() -> list[torch.Tensor]:
        A = torch.sparse_coo_tensor(places, values, shape, is_coalesced=True)
        found: list[torch.Tensor] = by_hand(lambda X: torch.sparse.mm(A, X), torch.float64, step)()
        return found

    contestants: dict[str, Prepare] = {
        OURS: library("Scorch", step),
        "scorch, edge_index": library("Scorch, edge_index", step),
        "torch CSR int32": in_torch("CSR", False),
        "torch COO": in_torch("COO", False),
    }
    if is_symmetric:
        contestants["torch CSR int32, symmetric"] = in_torch("CSR", True)
    if has_pyg():
        for name in ("PyG, edge_index", "PyG, EdgeIndex", "PyG, torch.sparse"):
            contestants[name] = library(name, step)
    label = f"{kind} step, {data.x.shape[1]} to {data.classes}"
    yield Case(section, label, data.source, contestants, reference, tolerance=TOLERANCE)
    if torch.device(device).type != "cuda":
        return
    replayed: dict[str, Prepare] = {
        OURS: library("Scorch", captured),
        "torch CSR int32": in_torch("CSR", False, captured),
    }
    if is_symmetric:
        replayed["torch CSR int32, symmetric"] = in_torch("CSR", True, captured)
    yield Case(section, f"{label}, captured", data.source, replayed, reference, tolerance=TOLERANCE)


def has_pyg() -> bool:
    try:
        import torch_geometric  # noqa: F401
    except Exception:
        return False
    return True


# GAT -------------------------------------------------------------------------------------------------


def gat(device: str, directory: Path | None, tiny: bool) -> Iterator[Case]:
    data = graph(device, directory, tiny)
    features = data.x.shape[1]
    with torch.device(device):
        torch.manual_seed(0)
        weights = nn.GATConv(features, WIDTH, heads=HEADS).state_dict()
        gradient = torch.randn(data.nodes, HEADS * WIDTH)
    source, target = with_loops(data)

    def both(forward: Callable[..., torch.Tensor], parameters: list[torch.Tensor], x: torch.Tensor) -> Call:
        given = [x, *parameters]
        G = gradient.to(x.dtype)

        def run() -> list[torch.Tensor]:
            out = forward(x)
            return [out, *torch.autograd.grad(out, given, G)]

        return Call(run)

    def library(layers: Any, held: Callable[[], Any]) -> Prepare:
        def prepare() -> Call:
            with torch.device(device):
                layer = layers.GATConv(features, WIDTH, heads=HEADS)
            layer.load_state_dict(weights)
            own = dict(layer.named_parameters())
            edges = held()
            return both(lambda x: layer(x, edges), [own[name] for name in weights], leaf(torch.float32))

        return prepare

    def leaf(dtype: torch.dtype) -> torch.Tensor:
        return data.x.to(dtype, copy=True).requires_grad_()

    def by_hand(dtype: torch.dtype) -> Call:
        own = {name: weight.to(dtype, copy=True).requires_grad_() for name, weight in weights.items()}

        def forward(x: torch.Tensor) -> torch.Tensor:
            h = (x @ own["lin.weight"].T).view(-1, HEADS, WIDTH)
            scores = (h * own["att_src"]).sum(2)[source] + (h * own["att_dst"]).sum(2)[target]
            scores = F.leaky_relu(scores, 0.2)
            index = target[:, None].expand_as(scores)
            most = torch.full((data.nodes, HEADS), -torch.inf, dtype=dtype, device=device)
            most = most.scatter_reduce(0, index, scores.detach(), "amax")
            powers = (scores - most[target]).exp()
            sums = torch.zeros(data.nodes, HEADS, dtype=dtype, device=device).index_add(0, target, powers)
            messages = h[source] * (powers / sums[target])[:, :, None]
            zeros = torch.zeros(data.nodes, HEADS, WIDTH, dtype=dtype, device=device)
            return zeros.index_add(0, target, messages).flatten(1) + own["bias"]

        return both(forward, list(own.values()), leaf(dtype))

    contestants: dict[str, Prepare] = {
        OURS: library(nn, data.matrix),
        "scorch, edge_index": library(nn, lambda: data.edge_index),
        "torch scatters": lambda: by_hand(torch.float32),
    }
    if has_pyg():
        import torch_geometric.nn as pyg
        from torch_geometric import EdgeIndex

        order = torch.argsort(data.edge_index[1], stable=True)
        edges = data.edge_index[:, order]

        def edge_index() -> Any:
            size = (data.nodes, data.nodes)
            return EdgeIndex(edges, sparse_size=size, sort_order="col", is_undirected=True)

        contestants["PyG, edge_index"] = library(pyg, lambda: edges)
        contestants["PyG, EdgeIndex"] = library(pyg, edge_index)
    label = f"GAT layer, {HEADS} heads of {WIDTH}"
    yield Case(
        "gat",
        label,
        data.source,
        contestants,
        by_hand(torch.float64),
        tolerance=TOLERANCE,
    )


SECTIONS = {"gcn": gcn, "sage": sage, "gat": gat}
