"""Beyond the paper: experts, top-k codes, recommenders, pruned layers, deep networks, knowledge graphs.

python -m benchmarks.paper.beyond --data DIR [--only experts codes] [--threads N] [--json FILE] [--quick]

experts     a mixture of 16 experts of which each token sees 2, without dropping any
codes       decoding of 32 features out of 16,384 for each token
recommender three rounds of LightGCN over users and items
pruned      layers of a pruned transformer at batches of 1, 8 and 64
challenge   the Graph Challenge's network: 30 sparse layers; its result is compared with the published one
knowledge   one round of CP decomposition (MTTKRP and a solve for each mode) of knowledge graphs
"""

from __future__ import annotations

import argparse
import functools
import gzip
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import scorch
from benchmarks.paper.running import Report, Row, agreeing, contest, finished, parser, started

warnings.filterwarnings("ignore", message="Sparse")

Calls = dict[str, Callable[[], torch.Tensor]]
Problem = tuple[str, str, Calls, dict[str, float]]  # data, what is done, contestants, facts


# mixture of experts ----------------------------------------------------------------------------------


def experts(options: argparse.Namespace, report: Report) -> Iterator[Problem]:
    tokens, width, count = (64, 32, 4) if options.quick else (2048, 256, 16)
    layer = scorch.nn.MoE(width, experts=count, k=2, hidden=4 * width).eval()
    x = torch.randn(tokens, width)

    def every_expert() -> torch.Tensor:
        gates = layer.gate(x).to_dense()
        return torch.stack([expert(x) for expert in layer.experts], 1).mul(gates[:, :, None]).sum(1)

    def by_masks() -> torch.Tensor:
        gates = layer.gate(x).to_dense()
        found = torch.zeros_like(x)
        for number, expert in enumerate(layer.experts):
            rows = gates[:, number].nonzero()[:, 0]
            found.index_add_(0, rows, expert(x[rows]) * gates[rows, number, None])
        return found

    calls: Calls = {
        "Scorch": lambda: layer(x),
        "torch, by masks": by_masks,
        "torch, every expert": every_expert,
    }
    yield f"{tokens} tokens of {width}", f"2 of {count} experts", calls, {}


# top-k codes -----------------------------------------------------------------------------------------


def codes(options: argparse.Namespace, report: Report) -> Iterator[Problem]:
    tokens, width, features, k = (32, 64, 512, 8) if options.quick else (512, 768, 16_384, 32)
    h, W = torch.randn(tokens, features), torch.randn(features, width) / features**0.5
    kept, places = h.topk(k, -1)
    dense = torch.zeros_like(h).scatter_(1, places, kept)
    code = scorch.topk_sparse(h, k)
    rows = torch.arange(0, tokens * k + 1, k)
    csr = torch.sparse_csr_tensor(rows, *_sorted_rows(places, kept), (tokens, features))
    bags = places.flatten(), W, torch.arange(0, tokens * k, k)
    calls: Calls = {
        "Scorch": lambda: code @ W,
        "torch CSR": lambda: csr @ W,
        "torch, embedding_bag": lambda: F.embedding_bag(*bags, mode="sum", per_sample_weights=kept.flatten()),
        "torch, dense": lambda: dense @ W,
    }
    yield f"{tokens} tokens, {features} features", f"decoding {k} of them", calls, {}


def _sorted_rows(places: torch.Tensor, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    order = places.argsort(1)
    return places.gather(1, order).flatten(), kept.gather(1, order).flatten()


# recommender -----------------------------------------------------------------------------------------


def recommender(options: argparse.Namespace, report: Report) -> Iterator[Problem]:
    users, items, each, width = (300, 200, 5, 16) if options.quick else (60_000, 30_000, 40, 64)
    draw = torch.Generator().manual_seed(0)
    liked = (torch.rand(users * each, generator=draw, dtype=torch.float64) ** 3 * items).long()
    pairs = torch.stack([torch.arange(users).repeat_interleave(each), liked])
    seen = (
        scorch.sparse_coo_tensor(pairs, torch.ones(users * each), (users, items)).coalesce().to_format("csr")
    )
    scaled = seen * seen.sum(1).to_dense().clamp(min=1).rsqrt()[:, None]
    graph = (scaled * seen.sum(0).to_dense().clamp(min=1).rsqrt()[None, :]).to_format("csr")
    U, V = torch.randn(users, width), torch.randn(items, width)
    report.sources["recommender"] = "made up"

    def rounds(there: Any, back: Any) -> torch.Tensor:
        u, v, total = U, V, U
        for _ in range(3):
            u, v = there @ v, back @ u
            total = total + u
        return total / 4

    csr, turned = graph.to_torch(), graph.T.to_format("csr")
    back = turned.to_torch()
    coo, coo_back = csr.to_sparse_coo().coalesce(), back.to_sparse_coo().coalesce()
    calls: Calls = {
        "Scorch": lambda: rounds(graph, turned),
        "Scorch, graph.T": lambda: rounds(graph, graph.T),
        "torch CSR": lambda: rounds(csr, back),
        "torch COO": lambda: rounds(coo, coo_back),
    }
    yield f"{users} users, {items} items", "LightGCN, 3 rounds", calls, {"density": graph.density}


# pruned layers ---------------------------------------------------------------------------------------


def pruned(options: argparse.Namespace, report: Report) -> Iterator[Problem]:
    folder = None if options.data is None else options.data / "dlmc"
    files = sorted(folder.glob("transformer_magnitude_0.9*ffn*.npz")) if folder is not None else []
    report.sources["pruned"] = f"{len(files)} layers of dlmc, values drawn" if files else "made up"
    layers = [(path.stem, _pattern(path)) for path in files] or [
        (f"made up, {share:.0%}", (torch.rand(2048, 512) >= share).float()) for share in (0.9, 0.95, 0.98)
    ]
    for name, mask in layers[:1] if options.quick else layers:
        W = mask * torch.randn_like(mask) / mask.shape[1] ** 0.5
        S = scorch.from_torch(W, format="csr")
        csr = W.to_sparse_csr()
        for batch in (1, 8, 64):
            x = torch.randn(batch, W.shape[1])
            calls: Calls = {
                "Scorch": lambda x=x, S=S: F.linear(x, S),
                "torch, dense": lambda x=x, W=W: F.linear(x, W),
                "torch CSR": lambda x=x, csr=csr: (csr @ x.t()).t(),
            }
            yield name.removeprefix("transformer_magnitude_"), f"batch {batch}", calls, {"density": S.density}


def _pattern(path: Path) -> torch.Tensor:
    with np.load(path) as file:
        lengths = torch.from_numpy(np.diff(file["indptr"]).astype(np.int64))
        columns, shape = torch.from_numpy(file["indices"].astype(np.int64)), file["shape"].tolist()
    found = torch.zeros(shape)
    found[torch.arange(shape[0]).repeat_interleave(lengths), columns] = 1
    return found


# Graph Challenge -------------------------------------------------------------------------------------


def challenge(options: argparse.Namespace, report: Report) -> Iterator[Problem]:
    path = None if options.data is None else options.data / "sparse_dnn" / "radixnet_1024x30.npz"
    if path is None or not path.is_file():
        report.sources["challenge"] = "made up"
        weights, images, categories = _made_up_network()
    else:
        report.sources["challenge"] = path.name
        weights, images, categories = _network(path)
    turned = [W.T.to_format("csr").to_torch() for W in weights]
    dense, first = [W.to_dense() for W in weights], images.to_torch()

    def scorch_layers() -> torch.Tensor:
        Y: Any = images
        for W in weights:
            Y = scorch.evaluate("Z[i,j] = Y[i,k] * W[k,j]", Y=Y, W=W, format="csr")
            Y = (Y - 0.3 * Y.sign()).clamp(0, 32).eliminate_zeros()
        return Y.to_dense()

    def dense_activations() -> torch.Tensor:
        Y = images.to_dense()
        for W in weights:
            Y = _activated(Y @ W)
        return Y

    def dense_layers(matrices: Sequence[torch.Tensor]) -> torch.Tensor:
        Y = first.to_dense()
        for W in matrices:
            Y = _activated(Y @ W)
        return Y

    def torch_csr() -> torch.Tensor:
        Y = first.to_dense().t()
        for W in turned:
            Y = _activated(W @ Y)
        return Y.t()

    found = scorch_layers()
    rows = found.any(1).nonzero()[:, 0]
    facts = {"nonzero": float((found != 0).sum())}
    if categories is not None:
        facts["categories right"] = float(torch.equal(rows, categories))
    calls: Calls = {
        "Scorch": scorch_layers,
        "Scorch, dense activations": dense_activations,
        "torch CSR": torch_csr,
        "torch, dense": lambda: dense_layers(dense),
    }
    yield f"{images.shape[0]} images, {len(weights)} layers", "all layers", calls, facts


def _activated(Y: torch.Tensor) -> torch.Tensor:
    """The bias of -0.3 on nonzero entries, ReLU and the cap of 32."""
    return torch.where(Y != 0, Y - 0.3, Y).clamp(0, 32)


def _network(path: Path) -> tuple[list[Any], Any, torch.Tensor | None]:
    with np.load(path) as file:
        columns = torch.from_numpy(file["w_indices"].astype(np.int64))
        value, shape = float(file["w_value"]), tuple(file["x_shape"].tolist())
        x = [torch.from_numpy(file[name].astype(np.int64)) for name in ("x_indptr", "x_indices")]
        categories = torch.from_numpy(file["categories"].astype(np.int64))
    size, each = columns.shape[1:]
    pos, ones = torch.arange(0, size * each + 1, each), torch.full((size * each,), value)
    weights = [scorch.sparse_csr_tensor(pos, layer.flatten(), ones, (size, size)) for layer in columns]
    return weights, scorch.sparse_csr_tensor(*x, torch.ones(x[1].numel()), shape), categories


def _made_up_network() -> tuple[list[Any], Any, None]:
    draw = torch.Generator().manual_seed(0)
    dense = [(torch.rand(128, 128, generator=draw) < 0.2) * 0.0625 for _ in range(5)]
    images = (torch.rand(60, 128, generator=draw) < 0.3).float()
    return [scorch.from_torch(W, format="csr") for W in dense], scorch.from_torch(images, format="csr"), None


# knowledge graphs ------------------------------------------------------------------------------------

MODES = ("X[i,j,k] * B[j,r] * C[k,r]", "X[i,j,k] * A[i,r] * C[k,r]", "X[i,j,k] * A[i,r] * B[j,r]")


def knowledge(options: argparse.Namespace, report: Report) -> Iterator[Problem]:
    rank = 32
    for name in ["umls"] if options.quick else ["umls", "wn18rr", "fb15k237"]:
        X, source = _tensor(name, options.data)
        report.sources[name] = source
        factors = [torch.rand(size, rank) for size in X.shape]
        calls: Calls = {
            "Scorch": functools.partial(_round, factors, functools.partial(_by_statement, X)),
            "torch, gather and add": functools.partial(
                _round, factors, functools.partial(_by_gather, X.indices().long(), X.values())
            ),
        }
        yield name, f"CP, one round, rank {rank}", calls, {"entries": float(X.nnz)}


def _round(
    factors: list[torch.Tensor], product: Callable[[list[torch.Tensor], int], torch.Tensor]
) -> torch.Tensor:
    """Alternating least squares: every factor once."""
    found = list(factors)
    for mode in range(3):
        first, second = (found[other] for other in range(3) if other != mode)
        gram = (first.t() @ first) * (second.t() @ second) + 1e-3 * torch.eye(first.shape[1])
        found[mode] = torch.linalg.solve(gram, product(found, mode).t()).t()
    return torch.cat(found)


def _by_statement(X: Any, factors: list[torch.Tensor], mode: int) -> torch.Tensor:
    named = {
        name: factor
        for number, (name, factor) in enumerate(zip("ABC", factors, strict=True))
        if number != mode
    }
    text = f"M[{'ijk'[mode]},r] = {MODES[mode]}"
    found: torch.Tensor = scorch.evaluate(text, X=X, format="dense", **named)
    return found


def _by_gather(
    places: torch.Tensor, values: torch.Tensor, factors: list[torch.Tensor], mode: int
) -> torch.Tensor:
    rows = values[:, None]
    for other in range(3):
        if other != mode:
            rows = rows * factors[other][places[other]]
    return torch.zeros_like(factors[mode]).index_add_(0, places[mode], rows)


def _tensor(name: str, directory: Path | None) -> tuple[Any, str]:
    path = None if directory is None else directory / "tensors" / f"{name}.tns.gz"
    if path is None or not path.is_file():
        sizes = {"umls": (135, 46, 135), "wn18rr": (40_943, 11, 40_943), "fb15k237": (14_541, 237, 14_541)}[
            name
        ]
        count = {"umls": 6_529, "wn18rr": 93_003, "fb15k237": 310_116}[name]
        places = torch.stack([torch.randint(size, (count,)) for size in sizes])
        return scorch.sparse_coo_tensor(places, torch.ones(count), sizes).coalesce(), "made up"
    with gzip.open(path, "rt") as file:
        numbers = torch.from_numpy(np.loadtxt(file, dtype=np.float64, ndmin=2))
    places = numbers[:, :-1].t().long() - 1
    sizes = tuple((places.amax(1) + 1).tolist())
    return scorch.sparse_coo_tensor(places, numbers[:, -1].float(), sizes).coalesce(), path.name


# all of them -----------------------------------------------------------------------------------------

ALL = {
    "experts": experts,
    "codes": codes,
    "recommender": recommender,
    "pruned": pruned,
    "challenge": challenge,
    "knowledge": knowledge,
}


def main(arguments: Sequence[str] | None = None) -> int:
    options_of = parser(__doc__.splitlines()[0])
    options_of.add_argument("--only", nargs="+", default=list(ALL), choices=ALL)
    options = options_of.parse_args(arguments)
    report = started(options, "Beyond the paper")
    for name in options.only:
        with torch.no_grad():
            for on, what, calls, facts in ALL[name](options, report):
                able, left_out = agreeing(calls)
                runs, warm_ups = (1, 0) if options.quick else (options.runs, 5)
                times = contest(able, runs, warm_ups, f"{name}: {on}, {what}")
                report.rows.append(Row(f"{name}: {on}", what, times, facts=facts, left_out=left_out))
    return finished(report, options)


if __name__ == "__main__":
    raise SystemExit(main())
