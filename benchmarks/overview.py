"""The README's figure: common tasks with Scorch, torch.sparse, PyG and dense torch.

    python -m benchmarks.overview [--data DIR] [--seconds 3] [--plot docs/_static/speed.svg] [--json]

Results are compared before anything is timed, contestants take turns in one process with the same threads,
and times are medians. torch.sparse runs at the better of CSR and COO, PyG at the best of ``edge_index``,
``EdgeIndex`` and a torch.sparse matrix. A contestant that cannot do a task has no bar.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import scorch
from benchmarks import attention, graphs
from benchmarks.graph_data import Data, load
from benchmarks.overhead import machine
from scorch.nn import masks

warnings.filterwarnings("ignore")

Calls = dict[str, Callable[[], Any]]
COLORS = {"torch.sparse": "#8c6bb1", "PyG": "#2c7fb8", "dense": "#969696"}


def tasks(data: Data, tokens: int, width: int) -> Iterator[tuple[str, Calls]]:
    """Yield a name and the calls of each contestant; those of torch.sparse and PyG may be several."""
    for kind in ("GCN", "GAT"):
        able, _ = graphs.checked(kind, data)
        names = {name: name.partition(",")[0] for name in able if name != "Scorch, sparse x"}
        steps = {f"{owner}/{name}": graphs.training_step(data, able[name]) for name, owner in names.items()}
        yield f"{kind}, training step ({data.name})", steps
    A = data.matrix()
    csr = A.to_torch()
    coo = csr.to_sparse_coo()
    X = torch.rand(A.shape[1], 128)
    yield "graph x features (SpMM)", {"Scorch": lambda: A @ X, **_by_layout(csr, coo, lambda t: t @ X)}
    yield "A + A.T", _sums(A, csr)
    P, Q = torch.rand(A.shape[0], 64), torch.rand(A.shape[1], 64)
    assert A.values().eq(1).all()  # torch samples, and does not multiply by the entries
    dots = {"torch.sparse/csr": lambda: torch.sparse.sampled_addmm(csr, P, Q.T, beta=0.0)}
    yield "edge scores (SDDMM)", {"Scorch": lambda: scorch.einsum("ij,ik,jk->ij", A, P, Q), **dots}
    yield "pruned MLP 90%, batch 32", _pruned(width)
    mask = masks.window(tokens, 128) | masks.global_tokens(tokens, 16)
    q, k, v, _ = attention.inputs(tokens)
    dense_mask = mask.to_dense()
    attend = F.scaled_dot_product_attention
    yield (
        f"window attention, {tokens:,} tokens",
        {
            "Scorch": lambda: attend(q, k, v, mask),
            "dense": lambda: attend(q, k, v, dense_mask),
        },
    )


def _by_layout(csr: torch.Tensor, coo: torch.Tensor, call: Callable[[torch.Tensor], Any]) -> Calls:
    return {"torch.sparse/csr": lambda: call(csr), "torch.sparse/coo": lambda: call(coo)}


def _sums(A: scorch.SparseTensor, csr: torch.Tensor) -> Calls:
    B = A.T.to_format("csr")
    other = B.to_torch()
    coo, other_coo = csr.to_sparse_coo().coalesce(), other.to_sparse_coo().coalesce()
    return {
        "Scorch": lambda: A + B,
        "torch.sparse/csr": lambda: csr + other,
        "torch.sparse/coo": lambda: coo + other_coo,
    }


def _pruned(width: int) -> Calls:
    """Two layers of a transformer's feed-forward network, with a ReLU between them."""
    torch.manual_seed(0)
    dense = torch.nn.Sequential(
        torch.nn.Linear(width, 4 * width), torch.nn.ReLU(), torch.nn.Linear(4 * width, width)
    ).eval()
    x = torch.randn(32, width)
    sparse = scorch.sparsify(dense, sparsity=0.9, prefer="size").eval()
    layers = [dense[0], dense[2]]
    weights = [layer.weight.to_dense() for layer in (sparse[0], sparse[2])]
    csr = [weight.to_sparse_csr() for weight in weights]

    def by_torch_sparse() -> torch.Tensor:
        hidden = F.relu(csr[0] @ x.T + layers[0].bias[:, None])
        return (csr[1] @ hidden + layers[1].bias[:, None]).T

    def run(call: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        def without_grad() -> torch.Tensor:
            with torch.no_grad():
                return call()

        return without_grad

    pruned = [torch.nn.Linear(*layer.weight.T.shape) for layer in layers]
    for module, layer, weight in zip(pruned, layers, weights, strict=True):
        module.load_state_dict({"weight": weight, "bias": layer.bias})
    by_dense = torch.nn.Sequential(pruned[0], torch.nn.ReLU(), pruned[1])
    return {
        "Scorch": run(lambda: sparse(x)),
        "torch.sparse": run(by_torch_sparse),
        "dense": run(lambda: by_dense(x)),
    }


# -- Measuring ------------------------------------------------------------------------------------------


def measure(name: str, calls: Calls, seconds: float) -> dict[str, Any]:
    """Compare the results, then time the calls; of several by one contestant the best counts."""
    if "training" not in name:  # those were compared by benchmarks.graphs
        results = {key: _try(call) for key, call in calls.items()}
        calls = {key: call for key, call in calls.items() if results[key] is not None}
        for key in calls:
            torch.testing.assert_close(results[key], results["Scorch"], rtol=1e-3, atol=1e-3)
    best: dict[str, float] = {}
    for key, time in graphs.interleaved(calls, seconds).items():
        owner = key.partition("/")[0]
        best[owner] = min(time, best.get(owner, time))
    return {"task": name, "milliseconds": best}


def _try(call: Callable[[], Any]) -> torch.Tensor | None:
    """Return what a call gives, or None where torch refuses it, such as sums in CSR without MKL."""
    try:
        return _as_dense(call())
    except RuntimeError:
        return None


def _as_dense(result: Any) -> torch.Tensor:
    """Return a sample of the rows, since some results are too large to be dense."""
    if isinstance(result, scorch.SparseTensor) or result.layout != torch.strided:
        sparse = (
            scorch.from_torch(result, format="csr") if not isinstance(result, scorch.SparseTensor) else result
        )
        dense: torch.Tensor = sparse[:64].to_dense()
        return dense
    return torch.as_tensor(result.detach())


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown, with the ratio of each contestant's time to Scorch's."""
    lines = ["| task | Scorch, ms | torch.sparse | PyG | dense |", "|---|---|---|---|---|"]
    for row in rows:
        times = row["milliseconds"]
        cells = [
            f"{_milliseconds(times[name])} ({times[name] / times['Scorch']:.2f}x)" if name in times else "-"
            for name in COLORS
        ]
        lines.append(f"| {row['task']} | {_milliseconds(times['Scorch'])} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _milliseconds(time: float) -> str:
    """Three digits, and none of them in an exponent."""
    return f"{float(f'{time:.3g}'):,g}"


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Draw how many times as long the others take, on a light and, in a second file, on a dark page."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    for ink, path in (("#24292f", file), ("#e6edf3", file.with_stem(file.stem + "-dark"))):
        with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": "scorch", "font.size": 10}):
            figure, axes = pyplot.subplots(figsize=(4.2, 0.45 * len(rows) + 0.6))  # legible on a phone
            seen: set[str] = set()
            for place, row in enumerate(reversed(rows)):
                times = row["milliseconds"]
                others = [name for name in COLORS if name in times]
                for number, name in enumerate(reversed(others)):
                    ratio = times[name] / times["Scorch"]
                    height = 0.8 / len(others)
                    y = place + height * (number - (len(others) - 1) / 2)
                    label = None if name in seen else name
                    seen.add(name)
                    axes.barh(y, ratio, height * 0.9, color=COLORS[name], label=label)
                    beside = {
                        "xytext": (3, 0),
                        "textcoords": "offset points",
                    }  # of spaces, browsers show none
                    axes.annotate(f"{ratio:.1f}x", (ratio, y), **beside, va="center", color=ink)
            axes.axvline(1, color="#d7301f", linewidth=1.5)
            axes.set_yticks(range(len(rows)), [row["task"] for row in reversed(rows)], color=ink)
            axes.set_xlabel("time relative to Scorch (red line); longer bars are slower", color=ink)
            axes.set_xscale("log")
            axes.set_xlim(left=0.5)
            ticks = [0.5, 1, 2, 5, 10, 20, 50]
            right = axes.get_xlim()[1]
            axes.set_xticks(
                [tick for tick in ticks if tick <= right], [f"{t:g}x" for t in ticks if t <= right], color=ink
            )
            axes.minorticks_off()
            for side in ("top", "right", "left"):
                axes.spines[side].set_visible(False)
            axes.spines["bottom"].set_color(ink)
            axes.tick_params(left=False, color=ink)
            handles, labels = axes.get_legend_handles_labels()
            order = sorted(range(len(labels)), key=lambda index: list(COLORS).index(labels[index]))
            axes.legend(
                [handles[i] for i in order],
                [labels[i] for i in order],
                frameon=False,
                labelcolor=ink,
                loc="lower left",
                bbox_to_anchor=(0, 1),
                ncols=3,
            )
            figure.savefig(path, bbox_inches="tight", transparent=True, metadata={"Date": None})
            pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overview", description=__doc__)
    parser.add_argument(
        "--data", type=Path, help="a folder with ogbn_arxiv/ogbn_arxiv.npz; else a made-up graph"
    )
    parser.add_argument("--graph", default="arxiv", help="of benchmarks.graphs: arxiv, pubmed, cora or tiny")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each task")
    parser.add_argument("--plot", type=Path, help="an .svg file; a dark one is written beside it")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = []
    for name, calls in tasks(load(options.graph, options.data), options.tokens, options.width):
        rows.append(measure(name, calls, options.seconds))
    if options.plot is not None:
        draw(rows, options.plot)
    print(
        json.dumps({"machine": machine(), "rows": rows}, indent=2)
        if options.json
        else f"{machine()}\n\n{table(rows)}"
    )


if __name__ == "__main__":
    main()
