"""Where the time of a pruned network goes: each part timed inside of it, dense and sparse in turns.

    python -m benchmarks.model_parts [--only BERT-base,Llama-7B] [--sparsity 0.95] [--threads 16,4,1]

Every linear layer is stored sparse, also where dense is faster, and what ``sparsify`` fuses is fused. The
networks take turns, so that each finds the caches as the other left them; medians in milliseconds, the sum
of all calls of a part. "else" is the time between the parts. ``--layers`` times single layers of BERT's
widths instead, in microseconds, and with ``--patterns 2:4,1:8`` those of N:M sparsity next to unstructured
ones of the same density.
"""

from __future__ import annotations

import argparse
import copy
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

import scorch
from benchmarks import model_shapes
from benchmarks.overhead import machine
from benchmarks.pruned import interleaved
from scorch._src.nn import prune
from scorch._src.nn.pruned.fused_modules import fuse_modules

LAYERS = ((768, 768), (2304, 768), (3072, 768), (768, 3072))
BATCHES = (1, 8, 128)
WIDE = (4096, 4096)  # of a decoder, timed with patterns
FEW_ROWS = (1, 2, 4, 8, 16, 32)
Times = dict[str, float]


class Stopwatch:
    """Adds up the seconds of functions by the names of parts."""

    def __init__(self) -> None:
        self.seconds: Times = {}

    def watch(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same function, timed as a part."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - start
            return result

        return timed

    def watch_layers(self, model: nn.Module) -> None:
        """Time linear layers by their last names, and all norms together."""
        for name, module in model.named_modules():
            part = "norms" if "norm" in name else name.rpartition(".")[2]
            if part == "norms" or isinstance(module, (nn.Linear, scorch.nn.SparseLinear)):
                module.forward = self.watch(part, module.forward)  # type: ignore[method-assign]

    @contextmanager
    def watch_functions(self) -> Iterator[None]:
        """Time what the networks call between their layers."""
        with ExitStack() as stack:
            for owner, name, part in (
                (F, "scaled_dot_product_attention", "attention"),
                (F, "gelu", "activation"),
                (F, "silu", "activation"),
                (model_shapes, "rotate", "rotary"),
            ):
                timed = self.watch(part, getattr(owner, name))
                stack.enter_context(mock.patch.object(owner, name, timed))
            yield


def sparse_copy(dense: nn.Module, sparsity: float) -> nn.Module:
    """Prune the linear layers of a network, and return a copy in which they are stored sparse."""
    sparse: dict[int, Any] = {}
    for module in dense.modules():
        if type(module) is nn.Linear:
            layer = scorch.nn.SparseLinear.from_dense(module, sparsity)
            module.weight.copy_(layer.to_dense().weight)
            sparse[id(module)] = layer
    return fuse_modules(copy.deepcopy(dense, sparse))


def measure(
    models: dict[str, nn.Module], inputs: model_shapes.Inputs, watch: Stopwatch, seconds: float
) -> dict[str, Times]:
    """Return the medians of all parts of each network, "all" and "else", in milliseconds."""
    found: dict[str, list[Times]] = {kind: [] for kind in models}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found["dense"]) < 4:
        for kind, model in models.items():
            watch.seconds = {}
            start = time.perf_counter()
            model(*inputs)
            found[kind].append({"all": time.perf_counter() - start, **watch.seconds})
    return {kind: _medians(rows[1:]) for kind, rows in found.items()}


def _medians(rows: list[Times]) -> Times:
    parts = {part: 1e3 * statistics.median(row[part] for row in rows) for part in rows[0]}
    return {**parts, "else": 2 * parts["all"] - sum(parts.values())}


def print_models(options: argparse.Namespace) -> None:
    watch, known = Stopwatch(), model_shapes.shapes(options.blocks, 1, options.tiny)
    for name in options.only:
        for sparsity in options.sparsity:
            torch.manual_seed(0)
            dense, inputs = known[name].build().eval(), known[name].inputs(1)
            models = {"dense": dense, "sparse": sparse_copy(dense, sparsity).eval()}
            torch.testing.assert_close(models["sparse"](*inputs), dense(*inputs), rtol=1e-3, atol=1e-3)
            for model in models.values():
                watch.watch_layers(model)
            for threads in options.threads:
                torch.set_num_threads(threads)
                with watch.watch_functions():
                    rows = measure(models, inputs, watch, options.seconds)
                ratio = rows["dense"]["all"] / rows["sparse"]["all"]
                print(f"{name}, {sparsity:.0%}, {threads} threads: {ratio:.2f} x dense")
                for kind, parts in rows.items():
                    print(
                        f"    {kind:6}", *(f"{part} {value:.3f}" for part, value in parts.items()), flush=True
                    )


def print_layers(options: argparse.Namespace) -> None:
    batches = BATCHES[:1] if options.tiny else BATCHES
    print(f"dense / sparse at {', '.join(map(str, batches))} rows, microseconds")
    for threads in options.threads:
        torch.set_num_threads(threads)
        for sparsity in options.sparsity:
            for outputs, features in LAYERS[:1] if options.tiny else LAYERS:
                dense = nn.Linear(features, outputs)
                cells = [_time_layer(dense, sparsity, rows, options.seconds) for rows in batches]
                print(f"{outputs} x {features}, {sparsity:.0%}, {threads} threads:", *cells, flush=True)


def _time_layer(dense: nn.Linear, sparsity: float, rows: int, seconds: float) -> str:
    layer, x = scorch.nn.SparseLinear.from_dense(dense, sparsity), torch.randn(rows, dense.in_features)
    times = interleaved({"dense": lambda: dense(x), "sparse": lambda: layer(x)}, seconds)
    return " / ".join(f"{1e3 * median:.0f}" for _, median in times.values())


def print_patterns(options: argparse.Namespace) -> None:
    shapes, batches = (LAYERS[:1], (1, 2)) if options.tiny else ((*LAYERS, WIDE), FEW_ROWS)
    rows = ", ".join(map(str, batches))
    print(f"dense / unstructured / N:M at {rows} rows, microseconds; times as fast as unstructured")
    for threads in options.threads:
        torch.set_num_threads(threads)
        for outputs, features in shapes:
            dense = nn.Linear(features, outputs)
            for n, m in options.patterns:
                layers = {
                    "dense": dense,
                    "unstructured": scorch.nn.SparseLinear.from_dense(dense, density=n / m),
                    "N:M": scorch.nn.SparseLinear.from_mask(dense, prune.nm_mask(dense.weight, n, m)),
                }
                cells = [_time_pattern(layers, count, options.seconds) for count in batches]
                print(f"{outputs} x {features}, {n}:{m}, {threads} threads:", *cells, sep=" | ", flush=True)


def _time_pattern(layers: dict[str, nn.Module], rows: int, seconds: float) -> str:
    x = torch.randn(rows, layers["dense"].in_features)  # type: ignore[call-overload]
    calls = {name: functools.partial(layer, x) for name, layer in layers.items()}
    medians = {name: median for name, (_, median) in interleaved(calls, seconds).items()}
    times = " / ".join(f"{1e3 * median:.0f}" for median in medians.values())
    return f"{times} {medians['unstructured'] / medians['N:M']:.2f}"


def _parse_patterns(text: str) -> list[tuple[int, int]]:
    return [(int(n), int(m)) for n, m in (pattern.split(":") for pattern in text.split(","))]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", type=lambda text: text.split(","), default=["BERT-base", "Llama-7B"])
    parser.add_argument("--sparsity", type=lambda text: [*map(float, text.split(","))], default=[0.95, 0.9])
    parser.add_argument("--threads", type=lambda text: [*map(int, text.split(","))], default=[16, 4, 1])
    parser.add_argument("--blocks", type=int, default=4, help="of the encoder of BERT-base's shape")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each row")
    parser.add_argument("--layers", action="store_true", help="time single layers")
    parser.add_argument("--patterns", type=_parse_patterns, help="time layers of these patterns, such as 2:4")
    parser.add_argument("--tiny", action="store_true", help="small networks, to see that it runs")
    options = parser.parse_args(arguments)
    print(machine())
    before = torch.get_num_threads()
    with torch.no_grad():
        if options.patterns:
            print_patterns(options)
        else:
            (print_layers if options.layers else print_models)(options)
    torch.set_num_threads(before)


if __name__ == "__main__":
    main()
