"""Scorch's kernels beside torch, SciPy and plain loops, on real matrices.

    python -m benchmarks.kernels --data DIR                     all kernels, 1 and 2 threads: about 20 minutes
    python -m benchmarks.kernels --data DIR --quick             a look, in about a minute
    python -m benchmarks.kernels --data DIR --switches          what each optimisation gives
    python -m benchmarks.kernels --data DIR --few --threads 1,2,4,8,16      how kernels scale
    python -m benchmarks.kernels --data DIR --main --threads 1,16           products and sums of matrices only
    python -m benchmarks.kernels --from a.json b.json --report FILE         a report of earlier runs

DIR has folders ``suitesparse``, ``dlmc``, ``ogbn_arxiv`` and ``tensors``; without it matrices are made up.
A run over everything writes its section of benchmarks/RESULTS.md, the plots and a JSON file beside it; a
run over a part prints its report unless told where to write it. Contestants that are not installed are left
out, and the report says so.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.kernels import data, generated, matrix_kernels, moving_kernels, tensor_kernels
from benchmarks.kernels.cases import Case, Kernel
from benchmarks.kernels.measure import measure
from benchmarks.kernels.progress import Progress
from benchmarks.kernels.report import report, write_section
from benchmarks.kernels.results import Results, load_all
from benchmarks.kernels.switches import extra_cases, measure_switches
from benchmarks.overhead import machine

HERE = Path(__file__).resolve().parent.parent
KERNELS = {
    kernel.name: kernel
    for kernel in [*matrix_kernels.KERNELS, *moving_kernels.KERNELS, *tensor_kernels.KERNELS]
}

# A handful of each kind and size, the real ones and those made up.
FEW = [
    "bcsstk01", "jagmesh7", "sherman3", "cage11", "BlogCatalog3", "xenon1", "NotreDame_www", "ogbn_arxiv",
    "transformer_magnitude_0.95_dec0_selfattn_q", "transformer_magnitude_0.8_enc0_ffn1",
    "umls", "fb15k237", "splatt_med", "yago_temporal",
    "made-mesh-tiny", "made-mesh-small", "made-banded", "made-crystal", "made-social", "made-materials",
    "made-web", "made-citations", "made-attention-0.95", "made-feedforward-0.8",
    "made-relations-small", "made-relations", "made-scattered", "made-dated",
]  # fmt: skip
QUICK = [
    "bcsstk01", "jagmesh7", "cage10", "transformer_magnitude_0.9_enc0_ffn1", "umls",
    "made-mesh-tiny", "made-mesh-small", "made-votes", "made-feedforward-0.9", "made-relations-small",
]  # fmt: skip
SWITCHED = [
    "cage11", "transformer_magnitude_0.8_enc0_ffn1", "ogbn_arxiv", "fb15k237", "splatt_med",
    "made-crystal", "made-feedforward-0.8", "made-citations", "made-relations", "made-scattered",
]  # fmt: skip
QUICK_LABELS = {"SpMV", "SpMM k=32", "SpMSpM A @ A.T", "SDDMM k=64, Y by rows", "A + shifted", "MTTKRP r=32"}
MAIN_LABELS = {
    "SpMV",
    "SpMM k=32",
    "SpMM k=128",
    "SDDMM k=64, Y by rows",
    "SpMSpM A @ A.T",
    *(f"A {sign} {other}" for sign in "+*" for other in ("shifted", "A.T")),
}
MAIN_RIVALS = ("Scorch", "torch C", "SciPy")  # how the names of those that take part in them begin
SWITCHED_LABELS = {
    "SpMV", "SpMM k=32", "SpMM k=128", "SpMM k=100", "SpMSpM A @ A.T", "SDDMM k=64, Y by rows", "A + shifted",
    "A * shifted", "row softmax", "CSR to CSC", "MTTKRP r=32", "TTV", "TTM r=32",
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A matrix or tensor that has not been read yet; ``size`` guesses how long its kernels take."""

    name: str
    takes: str
    size: float
    read: Callable[[], data.Matrix | data.Tensor]


def sources(directory: Path | None) -> list[Source]:
    """What there is to measure, the small ones first."""
    if directory is None:
        found = [
            Source(name, "matrix", row[3], lambda name=name: generated.make_matrix(name))
            for name, row in zip(generated.MATRIX_NAMES, generated.MATRICES, strict=True)
        ]
        found += [
            Source(name, "tensor", row[2], lambda name=name: generated.make_tensor(name))
            for name, row in zip(generated.TENSOR_NAMES, generated.TENSORS, strict=True)
        ]
    else:
        found = [
            Source(
                data.stem(path),
                "matrix",
                path.stat().st_size / 2,
                lambda g=group, p=path: data.read_matrix(g, p),
            )
            for group, path in data.matrix_files(directory)
        ]
        found += [
            Source(
                data.stem(path),
                "tensor",
                path.stat().st_size / 4,
                lambda p=path, s=shape: data.read_tns(p, "tensors", s),
            )
            for path, shape in data.tensor_files(directory)
        ]
    return sorted(found, key=lambda source: (source.takes, source.size))


def cases(kernel: Kernel, operands: object, only: set[str] | None) -> Iterator[Case]:
    for case in kernel.cases(operands, lambda label: only is None or label in only):
        if only is MAIN_LABELS:
            rivals = {name: way for name, way in case.contestants.items() if name.startswith(MAIN_RIVALS)}
            case = replace(case, contestants=rivals)
        yield case


def run(
    chosen: Sequence[Source],
    kernels: Sequence[Kernel],
    only: set[str] | None,
    threads: Sequence[int],
    seconds: float,
    results: Results,
    save_to: Path | None,
) -> None:
    """Measure the kernels on all chosen matrices; what is found so far is saved after each."""
    one = measure_switches if results.mode == "switches" else measure
    labels = {
        takes: sum(len(kernel.labels) for kernel in kernels if kernel.takes == takes)
        for takes in ("matrix", "tensor")
    }
    progress = Progress(sum((1 + source.size / 5e4) * labels[source.takes] for source in chosen))
    for source in chosen:
        mine = [kernel for kernel in kernels if kernel.takes == source.takes]
        if not mine:
            continue
        given = source.read()
        make = matrix_kernels.Operands if source.takes == "matrix" else tensor_kernels.Operands
        operands = make(given)  # type: ignore[arg-type]
        for kernel in mine:
            for case in cases(kernel, operands, only):
                one(case, given, threads, seconds, results)
            if results.mode == "switches" and kernel.name == "spmm":
                for case in extra_cases(given):  # type: ignore[arg-type]
                    one(case, given, threads, seconds, results)
            progress.advance((1 + source.size / 5e4) * len(kernel.labels), f"{source.name} {kernel.name}")
        del operands, given
        gc.collect()
        if save_to is not None:
            results.save(save_to)
    progress.finish()


def numbers_of_threads(text: str) -> list[int]:
    """``1,2`` as numbers."""
    found = sorted({int(count) for count in text.split(",")})
    if found[0] < 1:
        raise ValueError(text)
    return found


def some_time(text: str) -> float:
    """A number of seconds above zero."""
    found = float(text)
    if not 0 < found < float("inf"):
        raise ValueError(text)
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="the collections; without it, made up ones")
    parser.add_argument("--kernels", default="", metavar="A,B", help=f"some of {', '.join(KERNELS)}")
    parser.add_argument(
        "--matrices", default="", metavar="PATTERN", help="names with * and ?, commas between"
    )
    parser.add_argument("--threads", type=numbers_of_threads, metavar="N,N", help="numbers of threads (1,2)")
    parser.add_argument("--seconds", type=some_time, help="time for a case at one number of threads (0.15)")
    parser.add_argument("--few", action="store_true", help="a handful of matrices of each kind")
    parser.add_argument("--quick", action="store_true", help="few matrices, few kernels, little time")
    parser.add_argument("--main", action="store_true", help="products and sums, torch.sparse and SciPy")
    parser.add_argument("--switches", action="store_true", help="each optimisation switched off in turn")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the numbers go")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="where plots go")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="a Markdown file; its own section is replaced"
    )
    parser.add_argument(
        "--from", dest="earlier", type=Path, nargs="+", metavar="JSON", help="measure nothing"
    )
    found = parser.parse_args(arguments)
    for name in filter(None, found.kernels.split(",")):
        if name not in KERNELS:
            parser.error(f"unknown kernel {name!r}; there are {', '.join(KERNELS)}")
    if found.data is not None and not any(found.data.glob("*/")):
        parser.error(f"{found.data} has none of the folders suitesparse, dlmc, ogbn_arxiv, tensors")
    return found


def choose(options: argparse.Namespace) -> tuple[list[Source], list[Kernel], set[str] | None]:
    """The matrices, the kernels and the labels that were asked for."""
    chosen = sources(options.data)
    handful = QUICK if options.quick else SWITCHED if options.switches else FEW if options.few else None
    if options.matrices:
        patterns = options.matrices.split(",")
        chosen = [s for s in chosen if any(fnmatch.fnmatchcase(s.name, pattern) for pattern in patterns)]
    elif handful is not None:
        chosen = [source for source in chosen if source.name in handful]
    names = [name for name in options.kernels.split(",") if name]
    kernels = [kernel for name, kernel in KERNELS.items() if not names or name in names]
    only = MAIN_LABELS if options.main else None
    if not names and only is None:
        only = QUICK_LABELS if options.quick else SWITCHED_LABELS if options.switches else None
    if only is not None:
        kernels = [kernel for kernel in kernels if only.intersection(kernel.labels)]
    return chosen, kernels, only


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    warnings.filterwarnings("ignore", message="Sparse")
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    if options.earlier:
        try:
            found = load_all(options.earlier)
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"these are no results of this program: {error}", file=sys.stderr)
            return 1
        deliver(found, options.report, options.plots)
        return 0
    chosen, kernels, only = choose(options)
    if not chosen:
        print("no matrix has a name like that", file=sys.stderr)
        return 1
    threads = options.threads or ([2] if options.quick or options.switches else [1, 2])
    seconds = options.seconds or (0.05 if options.quick else 0.15)
    kind = "made up, as no collections were given" if options.data is None else "from files"
    matrices = _count(chosen, "matrix", "matrix", "matrices")
    tensors = _count(chosen, "tensor", "tensor", "tensors")
    here = machine()
    results = Results(
        mode="switches" if options.switches else "threads" if len(threads) > 2 else "kernels",
        machine=here,
        architecture=here.split(",")[0],
        data=f"{matrices} and {tensors}, {kind}",
        command=command(options),
    )
    is_whole = not (options.quick or options.few or options.matrices or options.kernels) and options.data
    target, plots, numbers = options.report, options.plots, options.json
    if is_whole:
        target = target or HERE / "RESULTS.md"
        plots = plots or (None if options.switches else HERE / "plots")
        numbers = numbers or HERE / f"{results.mode}-{results.architecture}.json"
    run(chosen, kernels, only, threads, seconds, results, numbers)
    deliver([results], target, plots)
    return 0


def command(options: argparse.Namespace) -> str:
    """The command that measures the same again, without where its results go."""
    words = ["python", "-m", "benchmarks.kernels"]
    if options.data is not None:
        words += ["--data", "DIR"]
    words += [f"--{name}" for name in ("few", "quick", "main", "switches") if getattr(options, name)]
    if options.threads:
        words += ["--threads", ",".join(map(str, options.threads))]
    for name in ("kernels", "matrices", "seconds"):
        if getattr(options, name):
            words += [f"--{name}", str(getattr(options, name))]
    return shlex.join(words)


def _count(chosen: Sequence[Source], takes: str, one: str, many: str) -> str:
    count = sum(source.takes == takes for source in chosen)
    return f"{count} {one if count == 1 else many}"


def deliver(found: Sequence[Results], target: Path | None, plots: Path | None) -> None:
    """Draw the plots, then write each report to its section of the file, or print it."""
    for results in found:
        images: list[Path] = []
        if plots is not None and results.mode != "switches":
            from benchmarks.kernels.plots import draw

            images = draw(results, plots)
        text = report(results, images, None if target is None else target.parent)
        if target is None:
            print(text)
        else:
            write_section(target, f"{results.mode} {results.architecture}", text)
            print(f"wrote the section '{results.mode} {results.architecture}' of {target}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
