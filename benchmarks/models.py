"""Whole pruned networks: dense torch and what else runs them, against ``scorch.sparsify``.

    python -m benchmarks.models [--few] [--only BERT-base,MLP] [--sparsity 0.9] [--batch 1,8,32]
                                [--threads 1,4,16] [--contestants bf16] [--seconds 0.5] [--limit 120]
                                [--block-size 4x4] [--json] [--plot FILE]

Weights are random and pruned by magnitude. ``scorch.sparsify`` decides on the example that is timed, so that
layers which are faster dense stay so; how many are sparse stands in the table. Results are compared with the
dense network of the same pruned weights before anything is timed. Contestants take turns, and the median of
each is kept; dense torch is always one of them. Those that cannot run are named with the reason, and rows
are printed as they are measured. "scorch compiled" is the sparse network under ``torch.compile``, which joins
what lies between its layers; "scorch bf16" and "scorch int8" store its weights so. Without a network OpenVINO
waits for its telemetry, which ``opt_in_out --opt_out`` turns off. The file of each network at 90% and the
time to load it follow. ``--few`` takes 90 and 95%, batch 1, the fewest and the most threads, and smaller
stacks of layers; ``--tiny`` runs all in small, to see that it runs.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import io
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import scorch
from benchmarks.model_shapes import Inputs, Shape, shapes
from benchmarks.overhead import machine
from benchmarks.pruned import interleaved
from scorch._src.nn.pruned.fused_modules import fuse_modules
from scorch._src.nn.pruned.prunable import is_sparse_layer
from scorch._src.nn.pruned.replace_layers import replace_modules
from scorch._src.nn.sparse_linear import SparseLinear
from scorch._src.nn.weights.stored_values import store_values

SPARSITIES = (0.8, 0.9, 0.95, 0.98)
BATCHES = (1, 8, 32)
FEW_SPARSITIES, FEW_BATCHES, FEW_LAYERS, FEW_BLOCKS = (0.9, 0.95), (1,), 4, 1
LAYERS, BLOCKS = 12, 2
FILE_SPARSITY = 0.9
LOADS = 5  # the fastest of which counts
Call = Callable[[], Any]


# contestants -----------------------------------------------------------------------------------------


class CsrLinear(nn.Module):
    """A linear layer whose weight is a CSR tensor of torch."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.matrix, self.bias = layer.weight.detach().to_sparse_csr(), layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = (self.matrix @ x.reshape(-1, x.shape[-1]).T).T.reshape(*x.shape[:-1], -1)
        return found if self.bias is None else found + self.bias


class ExportedNorm(nn.Module):
    """``RMSNorm`` in operations that ``torch.onnx`` exports."""

    def __init__(self, norm: nn.RMSNorm) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.eps or torch.finfo(torch.float32).eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weight


def with_compile(model: nn.Module, inputs: Inputs) -> Call:
    compiled = torch.compile(model)
    return lambda: compiled(*inputs)


def with_bf16(model: nn.Module, inputs: Inputs) -> Call:
    half, halves = copy.deepcopy(model).bfloat16(), tuple(tensor.bfloat16() for tensor in inputs)
    return lambda: half(*halves)


def with_torch_sparse(model: nn.Module, inputs: Inputs) -> Call:
    layers = {module: CsrLinear(module) for module in model.modules() if type(module) is nn.Linear}
    if not layers:
        raise TypeError("torch has no sparse convolutions")
    sparse = copy.deepcopy(model)
    linears = [module for module in sparse.modules() if type(module) is nn.Linear]
    sparse = replace_modules(sparse, dict(zip(linears, layers.values(), strict=True)))
    return lambda: sparse(*inputs)


def with_onnxruntime(model: nn.Module, inputs: Inputs) -> Call:
    runtime: Any = importlib.import_module("onnxruntime")
    names, file = [f"x{number}" for number in range(len(inputs))], io.BytesIO()
    model = copy.deepcopy(model)
    norms = [module for module in model.modules() if isinstance(module, nn.RMSNorm)]
    model = replace_modules(model, {norm: ExportedNorm(norm) for norm in norms})
    torch.onnx.export(model, inputs, file, input_names=names, dynamo=False)  # type: ignore[arg-type]
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = runtime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    feeds = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
    return lambda: session.run(None, feeds)


def with_openvino(model: nn.Module, inputs: Inputs) -> Call:
    openvino: Any = importlib.import_module("openvino")
    network = openvino.convert_model(model, example_input=inputs)
    options = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    compiled, arrays = openvino.compile_model(network, "CPU", options), [tensor.numpy() for tensor in inputs]
    return lambda: compiled(arrays)


def with_values(dtype: torch.dtype) -> Callable[[nn.Module, Inputs], Call]:
    """Store the weights of a sparse network in another dtype."""

    def store(model: nn.Module, inputs: Inputs) -> Call:
        stored = copy.deepcopy(model)
        for module in stored.modules():
            if type(module) is SparseLinear:
                store_values(module, dtype)
        return lambda: stored(*inputs)

    return store


SPARSE_CONTESTANTS: dict[str, Callable[[nn.Module, Inputs], Call]] = {
    "scorch compiled": with_compile,
    "scorch bf16": with_values(torch.bfloat16),
    "scorch int8": with_values(torch.int8),
}
CONTESTANTS: dict[str, Callable[[nn.Module, Inputs], Call]] = {
    "compile": with_compile,
    **SPARSE_CONTESTANTS,
    "bf16": with_bf16,
    "torch.sparse": with_torch_sparse,
    "onnxruntime": with_onnxruntime,
    "openvino": with_openvino,
}


# measuring -------------------------------------------------------------------------------------------


def densify(model: nn.Module) -> nn.Module:
    """A copy of a model with all layers dense, and PyTorch's own modules between them."""
    model = copy.deepcopy(model)
    sparse: list[Any] = [module for module in model.modules() if is_sparse_layer(module)]
    return fuse_modules(replace_modules(model, {module: module.to_dense() for module in sparse})).eval()


def measure(
    name: str,
    shape: Shape,
    setting: tuple[float, int, int],
    contestants: Sequence[str],
    seconds: float,
    block: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """One network at a sparsity, batch and number of threads."""
    sparsity, batch, threads = setting
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    torch._dynamo.reset()
    inputs = shape.inputs(batch)
    sparse = scorch.sparsify(shape.build().eval(), sparsity, block, example=inputs, inplace=True)
    pruned = densify(sparse)
    torch.testing.assert_close(sparse(*inputs), pruned(*inputs), rtol=1e-3, atol=1e-3)
    calls: dict[str, Call] = {"dense": lambda: pruned(*inputs), "scorch": lambda: sparse(*inputs)}
    skipped: dict[str, str] = {}
    for contestant in contestants:
        try:
            network = sparse if contestant in SPARSE_CONTESTANTS else pruned
            call = CONTESTANTS[contestant](network, inputs)
            call()
        except Exception as error:
            skipped[contestant] = (
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            )
        else:
            calls[contestant] = call
    found = {contestant: times[1] for contestant, times in interleaved(calls, seconds).items()}
    layers = [module for module in sparse.modules() if hasattr(module, "sparsified")]
    row = {
        "model": name,
        "sparsity": sparsity,
        "batch": batch,
        "threads": threads,
        "milliseconds": found,
        "faster": found["dense"] / found["scorch"],
        "sparse_layers": sum(map(is_sparse_layer, layers)),
        "layers": len(layers),
        "skipped": skipped,
    }
    if shape.makes_tokens:
        row["tokens_per_second"] = {key: 1e3 * batch / value for key, value in found.items()}
    return row


def measure_file(name: str, shape: Shape, folder: Path) -> dict[str, Any]:
    """The size of the files of a dense and a pruned network, and the milliseconds to load them."""
    torch.manual_seed(0)
    model = shape.build()
    sparse = scorch.sparsify(model, FILE_SPARSITY, prefer="size")
    paths = {"dense": folder / "dense.pt", "scorch": folder / "sparse.pt"}
    torch.save(model.state_dict(), paths["dense"])
    torch.save(sparse.state_dict(), paths["scorch"])
    del model, sparse

    def empty() -> nn.Module:
        with torch.device("meta"):
            return shape.build()

    loaders: dict[str, Callable[[], Any]] = {
        "dense": lambda: empty().load_state_dict(torch.load(paths["dense"], weights_only=True), assign=True),
        "scorch": lambda: scorch.nn.load_sparse(empty(), torch.load(paths["scorch"], weights_only=True)),
    }
    times: dict[str, float] = dict.fromkeys(loaders, float("inf"))
    for _ in range(LOADS):
        for kind, load in loaders.items():
            start = time.perf_counter()
            load()
            times[kind] = min(times[kind], 1e3 * (time.perf_counter() - start))
    sizes = {kind: path.stat().st_size for kind, path in paths.items()}
    return {
        "model": name,
        "bytes": sizes,
        "size_ratio": sizes["scorch"] / sizes["dense"],
        "load_milliseconds": times,
    }


# reporting -------------------------------------------------------------------------------------------


def table_head(names: Sequence[str]) -> str:
    head = ["network", "pruned", "batch", "threads", *names, "x dense", "sparse layers", "tokens/s"]
    return f"| {' | '.join(head)} |\n" + "|" + "---|" * len(head)


def table_line(row: dict[str, Any], names: Sequence[str]) -> str:
    """Milliseconds of all contestants, and how many times as fast Scorch is."""
    times = [f"{row['milliseconds'][name]:.3g}" if name in row["milliseconds"] else "-" for name in names]
    tokens = row.get("tokens_per_second")
    cells = [row["model"], f"{row['sparsity']:.0%}", row["batch"], row["threads"], *times]
    cells += [f"{row['faster']:.2f}", f"{row['sparse_layers']} of {row['layers']}"]
    cells.append("" if tokens is None else f"{tokens['scorch']:.3g} ({tokens['dense']:.3g})")
    return f"| {' | '.join(map(str, cells))} |"


def reasons(rows: list[dict[str, Any]]) -> str:
    """Which contestants could not run, and why."""
    skipped = {name: reason for row in rows for name, reason in row["skipped"].items()}
    return "\n".join(f"without {name}: {reason}" for name, reason in skipped.items())


def file_table(files: list[dict[str, Any]]) -> str:
    head = f"| network, {FILE_SPARSITY:.0%} pruned | file, MB (dense) | of dense | loaded in ms (dense) |"
    lines = [head, "|---|---|---|---|"]
    for row in files:
        size, loaded = row["bytes"], row["load_milliseconds"]
        lines.append(
            f"| {row['model']} | {size['scorch'] / 1e6:.3g} ({size['dense'] / 1e6:.3g}) | "
            f"{row['size_ratio']:.2f} | {loaded['scorch']:.3g} ({loaded['dense']:.3g}) |"
        )
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], path: Path) -> str:
    """Draw how many times as fast as dense torch networks are; return what was done."""
    try:
        plt: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        return "no plot: matplotlib is not installed"
    names = list(dict.fromkeys(row["model"] for row in rows))
    figure, axes = plt.subplots(1, len(names), figsize=(4 * len(names), 4), sharey=True, squeeze=False)
    for name, axis in zip(names, axes[0], strict=True):
        own = [row for row in rows if row["model"] == name]
        for batch, threads in dict.fromkeys((row["batch"], row["threads"]) for row in own):
            line = [row for row in own if (row["batch"], row["threads"]) == (batch, threads)]
            label = f"batch {batch}, {threads} threads"
            axis.plot(
                [100 * row["sparsity"] for row in line], [row["faster"] for row in line], "o-", label=label
            )
        axis.axhline(1, color="gray", linewidth=1)
        axis.set(title=name, xlabel="% of weights pruned", ylabel="times as fast as dense")
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
    return f"drawn to {path}"


def thread_counts() -> list[int]:
    """1, 2, 4, ... and all."""
    most = torch.get_num_threads()
    return sorted({*(1 << power for power in range(most.bit_length()) if 1 << power <= most), most})


def _with_defaults(options: argparse.Namespace) -> argparse.Namespace:
    """Fill in what was not given, which ``--few`` makes smaller."""
    threads = thread_counts()
    usual: dict[str, Any] = {"sparsity": SPARSITIES, "batch": BATCHES, "threads": threads}
    usual |= {"layers": LAYERS, "blocks": BLOCKS}
    few: dict[str, Any] = {"sparsity": FEW_SPARSITIES, "batch": FEW_BATCHES}
    few |= {"threads": sorted({threads[0], threads[-1]}), "layers": FEW_LAYERS, "blocks": FEW_BLOCKS}
    for name, value in (few if options.few else usual).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def block_size(text: str) -> tuple[int, int]:
    rows, columns = text.split("x")
    return int(rows), int(columns)


def main(arguments: list[str] | None = None) -> None:
    def numbers(kind: type) -> Callable[[str], list[Any]]:
        return lambda text: [kind(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--few", action="store_true", help="fewer rows of smaller networks")
    parser.add_argument("--only", type=numbers(str), help="networks, such as BERT-base,Llama-7B")
    parser.add_argument("--sparsity", type=numbers(float))
    parser.add_argument("--batch", type=numbers(int))
    parser.add_argument("--threads", type=numbers(int))
    parser.add_argument("--contestants", type=numbers(str), default=list(CONTESTANTS))
    parser.add_argument("--layers", type=int, help="of the encoder of BERT-base's shape")
    parser.add_argument("--blocks", type=int, help="of the decoder of Llama-7B's shape")
    parser.add_argument("--block-size", type=block_size, help="such as 4x4: prune whole blocks of weights")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each contestant")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no row begins")
    parser.add_argument("--no-files", action="store_true", help="leave out files and loading")
    parser.add_argument("--json", action="store_true", help="all numbers, for other programs")
    parser.add_argument("--plot", type=Path, help="a file to draw to")
    parser.add_argument("--tiny", action="store_true", help="small networks, to see that it runs")
    options = _with_defaults(parser.parse_args(arguments))
    end, before = time.perf_counter() + options.limit, torch.get_num_threads()
    known = shapes(min(options.layers, 2) if options.tiny else options.layers, options.blocks, options.tiny)
    chosen = {name: known[name] for name in options.only or known}
    contestants = [name for name in options.contestants if name in CONTESTANTS]
    names = ["dense", "scorch", *contestants]
    if not options.json:
        print(f"{machine()}, torch {torch.__version__}: medians in ms\n\n{table_head(names)}", flush=True)
    rows: list[dict[str, Any]] = []
    files: list[dict[str, Any]] = []
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for name, shape in chosen.items():
            for threads in options.threads:
                for batch in options.batch:
                    for sparsity in options.sparsity:
                        if time.perf_counter() < end:
                            setting = (sparsity, batch, threads)
                            rows.append(
                                measure(
                                    name, shape, setting, contestants, options.seconds, options.block_size
                                )
                            )
                            if not options.json:
                                print(table_line(rows[-1], names), flush=True)
            if not options.no_files and time.perf_counter() < end:
                files.append(measure_file(name, shape, Path(folder)))
    torch.set_num_threads(before)
    if options.json:
        facts = {"machine": machine(), "torch": torch.__version__}
        print(json.dumps({**facts, "rows": rows, "files": files}, indent=1))
    else:
        print(f"{reasons(rows)}\n\n{file_table(files)}")
    if options.plot is not None and rows:
        print(draw(rows, options.plot))


if __name__ == "__main__":
    main()
