"""Time against entries, both logarithmic, a panel for each kernel; as in Figure 8 of the paper."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.kernels.cases import OURS
from benchmarks.kernels.results import Measured, Results

# One colour a contestant; torch's layouts and spellings are drawn as the best of them, case by case.
SHOWN = {
    OURS: ("#d62728", "o"),
    "torch sparse, best": ("#1f77b4", "s"),
    "torch dense": ("#9ecae1", "D"),
    "SciPy": ("#2ca02c", "^"),
    "MKL": ("#8c564b", "P"),
    "numba": ("#ff7f0e", "v"),
    "gather-scatter": ("#7f7f7f", "x"),
}
FIGURES = {
    "products": ("spmv", "spmm", "spmspm", "sddmm"),
    "entries": ("add", "mul", "softmax", "convert", "mttkrp", "ttv", "ttm"),
}
COLUMNS = 3


def draw(results: Results, directory: Path) -> list[Path]:
    """Write one figure for each family of kernels and number of threads; where they are."""
    try:
        import matplotlib
    except ImportError:
        print("no plots: matplotlib is not installed", file=sys.stderr)
        return []
    matplotlib.use("Agg")
    directory.mkdir(parents=True, exist_ok=True)
    found = []
    counts = results.threads()
    for threads in counts if len(counts) <= 2 else [max(counts)]:
        for name, kernels in FIGURES.items():
            labels = [
                label
                for label in results.labels()
                if any(case.kernel in kernels for case in results.select(label, threads))
            ]
            if labels:
                path = directory / f"{results.architecture}-{name}-{threads}.png"
                _figure(results, labels, threads, path)
                found.append(path)
    return found


def series(case: Measured) -> dict[str, float]:
    """The points of one case, in milliseconds."""
    found = {name: case.median(name) * 1e3 for name in SHOWN if name in case.times}
    best = case.best_torch()
    if best is not None:
        found["torch sparse, best"] = best[1] * 1e3
    return found


def _figure(results: Results, labels: list[str], threads: int, path: Path) -> None:
    import matplotlib.pyplot as plt

    height = -(-len(labels) // COLUMNS)
    figure, axes = plt.subplots(
        height, COLUMNS, figsize=(4.2 * COLUMNS, 3.2 * height + 0.8), squeeze=False, layout="constrained"
    )
    handles = {}
    for label, axis in zip(labels, axes.flat, strict=False):
        points: dict[str, list[tuple[int, float]]] = {}
        for case in results.select(label, threads):
            for name, milliseconds in series(case).items():
                points.setdefault(name, []).append((case.nnz, milliseconds))
        for name, (colour, marker) in reversed(SHOWN.items()):  # Scorch last, on top
            if name in points:
                size = 16 if name == OURS else 10
                handles[name] = axis.scatter(
                    *zip(*points[name], strict=True),
                    s=size,
                    c=colour,
                    marker=marker,
                    alpha=0.75,
                    linewidths=0.8,
                )
        axis.set(xscale="log", yscale="log", title=label, xlabel="entries", ylabel="ms")
        axis.grid(True, which="major", linewidth=0.4, alpha=0.5)
    for axis in list(axes.flat)[len(labels) :]:
        axis.set_visible(False)
    names = [name for name in SHOWN if name in handles]
    word = "thread" if threads == 1 else "threads"
    figure.suptitle(f"{results.architecture}, {threads} {word}")
    figure.legend([handles[name] for name in names], names, loc="outside lower center", ncols=len(names))
    figure.savefig(path, dpi=90)
    plt.close(figure)
