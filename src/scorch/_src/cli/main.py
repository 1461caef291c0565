"""``python -m scorch``: environment, kernel cache, explanations, benchmarks, a demonstration in a shell."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scorch._src import __version__
from scorch._src.backends import cache
from scorch._src.cli import bench, demo, plan, warm
from scorch._src.cli.doctor_script import diagnose_script
from scorch._src.cli.environment import describe_environment
from scorch._src.cli.explain_formats import explain_formats, parse_sizes
from scorch._src.explain.doctor import SPARSITIES
from scorch.errors import (
    ArgumentError,
    FileError,
    ScorchError,
)

AddCommand = Callable[..., argparse.ArgumentParser]  # takes a name, a function and options of argparse

EPILOG = """\
examples:
  python -m scorch explain "ij,jk->ik" csr dense
  python -m scorch explain "ij,jk->ik" csr csr --sizes i=1e6,j=1e6,k=1e6 --density 1e-6
  python -m scorch explain "D[i,j] = A[i,k] * B[k,j] + C[i,j]" A=csr B=csr C=dcsr --source
  python -m scorch explain "ij,jk->ik" csr csr --html product.html

Calls on your own tensors, and functions compiled with scorch.compile, are explained from Python:
  print(scorch.explain("ij,jk->ik", A, B))
  print(scorch.explain(compiled, A, B)); its to_html() returns a page
"""


DOCTOR_EPILOG = """\
examples:
  python -m scorch doctor train.py
  python -m scorch doctor train.py --sparsities 0.5,0.9 --html report.html -- --epochs 1
"""


PLAN_EPILOG = """\
examples:
  python -m scorch plan graph.mtx --workers 16 --features 128,64
  python -m scorch plan graph.npz --workers 1024 --network 100Gb --partition parts.txt
  python -m scorch plan degrees.npy --workers 1024 --memory 64 --json
"""


BENCH_EPILOG = """\
examples:
  python -m scorch bench
  python -m scorch bench overhead --json
  python -m scorch bench figure5 --data DIR --threads 2 --runs 50
  python -m scorch bench kernels --help        # of the suite
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 2 where the input is wrong."""
    parser = make_parser()
    options, further = parser.parse_known_args(arguments)
    if options.command in (run_benchmark, show_diagnosis):
        options.further = further
    elif further:
        parser.error(f"unrecognized arguments: {' '.join(further)}")
    if options.command is None:
        parser.print_help()
        return 0
    try:
        code: int = options.command(options)
        sys.stdout.flush()
        return code
    except ScorchError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader (head, less) has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scorch",
        description="Scorch runs PyTorch operations on sparse tensors in any storage format.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=None)
    parser.add_argument("--version", action="version", version=f"scorch {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="{env,cache,explain,doctor,plan,demo,bench}")

    def add(name: str, run: Callable[[argparse.Namespace], int], **options: Any) -> argparse.ArgumentParser:
        about = options["help"]
        options.setdefault("description", f"{about[0].upper()}{about[1:]}.")
        command: argparse.ArgumentParser = commands.add_parser(
            name, formatter_class=argparse.RawDescriptionHelpFormatter, **options
        )
        command.set_defaults(command=run, print_help=command.print_help)
        return command

    add("env", show_environment, help="show versions, compiler, CPU, GPU and settings, for bug reports")
    for add_command in (_add_cache, _add_explain, _add_doctor, _add_plan, _add_demo, _add_bench):
        add_command(add)
    for command in commands.choices.values():
        command.add_argument("--json", action="store_true", help="print as JSON")
    return parser


def _add_cache(add: AddCommand) -> None:
    command = add("cache", show_cache, help="show, clear or fill the disk cache of compiled kernels")
    command.add_argument("--clear", action="store_true", help="remove all cached kernels")
    command.add_argument(
        "--warm", action="store_true", help="compile common kernels ahead of time, on all cores"
    )


def _add_explain(add: AddCommand) -> None:
    command = add(
        "explain",
        show_explanation,
        help="show how an expression is computed",
        description="Show how an expression over random tensors is computed: formats, loop order, and why.",
        epilog=EPILOG,
    )
    command.add_argument("expression", help='an einsum equation, or an index expression with "="')
    command.add_argument(
        "formats", nargs="*", metavar="FORMAT", help="the format of each operand, or NAME=FORMAT"
    )
    command.add_argument("--sizes", default="", metavar="i=100,j=200", help="sizes of indices (default 1000)")
    command.add_argument(
        "--density", type=float, default=0.01, help="density of sparse operands (default 0.01)"
    )
    command.add_argument("--result", metavar="FORMAT", help="format of the result")
    command.add_argument("--source", action="store_true", help="also print the generated source")
    command.add_argument("--html", metavar="FILE", help="write an HTML page, with measured times")


def _add_doctor(add: AddCommand) -> None:
    command = add(
        "doctor",
        show_diagnosis,
        help="show which layers of a script's model would gain from sparsity",
        description="Run a script until it calls its model, and show which layers would gain from sparsity.",
        epilog=DOCTOR_EPILOG,
    )
    command.add_argument("script", metavar="SCRIPT", nargs="?", help="the script, followed by its arguments")
    command.add_argument(
        "--finish", action="store_true", help="run the whole script, and diagnose its largest model"
    )
    command.add_argument("--sparsities", default="", metavar="0.8,0.9", help="fractions of weights to prune")
    command.add_argument("--html", metavar="FILE", help="write an HTML page")


def _add_plan(add: AddCommand) -> None:
    command = add(
        "plan",
        plan.show_plan,
        help="predict a distributed training step on a graph",
        description="Predict communication, memory and time of a distributed training step on a graph.",
        epilog=PLAN_EPILOG,
    )
    command.add_argument(
        "graph", metavar="GRAPH", help="a file with a sparse matrix, or with a vector of degrees"
    )
    command.add_argument("--workers", type=int, required=True, help="the number of ranks, one per machine")
    command.add_argument(
        "--network", default="10GbE", help="the network, such as 10GbE, 100Gb or 50us,1.1GB/s"
    )
    command.add_argument("--features", default="128", metavar="128,64", help="the widths of the layers")
    command.add_argument(
        "--cuts", default="work", help="how to cut rows: work, even, random, or a file of cuts"
    )
    command.add_argument("--partition", metavar="FILE", help="a file with the rank of each row")
    command.add_argument("--wire", choices=sorted(plan.WIRES), help="the dtype in which rows are sent")
    command.add_argument(
        "--memory", type=float, metavar="GB", help="memory of a rank; algorithms that need more are marked"
    )


def _add_demo(add: AddCommand) -> None:
    command = add(
        "demo", show_demo, help="run a short demonstration, compared with torch.sparse and dense PyTorch"
    )
    command.add_argument("--small", action="store_true", help="use small tensors, to see that it works")


def _add_bench(add: AddCommand) -> None:
    command = add(
        "bench",
        run_benchmark,
        help="run a benchmark suite, or list them",
        description="Run a benchmark suite with its own arguments; without a name, list the suites.",
        epilog=BENCH_EPILOG,
        add_help=False,
    )
    command.add_argument("suite", nargs="?", metavar="SUITE", help=f"one of {', '.join(bench.SUITES)}")
    command.add_argument(
        "--quick", action="store_true", help="run for a few seconds only, to see that it works"
    )
    command.add_argument(
        "-h", "--help", action="store_true", help="show the help of this command, or of the suite"
    )


# the commands ----------------------------------------------------------------------------------------


def show_environment(options: argparse.Namespace) -> int:
    _print_fields(describe_environment(), options.json)
    return 0


def show_cache(options: argparse.Namespace) -> int:
    fields: dict[str, Any] = {"removed": cache.clear()} if options.clear else {}
    if options.warm:
        warmed = warm.warm(None if options.json else warm.print_progress)
        fields |= {"usual kernels": warmed.kernels, "compiled": warmed.compiled}
        fields["seconds"] = round(warmed.seconds, 1)
    stored = cache.statistics()
    fields = {"directory": str(stored.directory), "entries": stored.entries, "bytes": stored.bytes, **fields}
    _print_fields(fields, options.json)
    return 0


def show_explanation(options: argparse.Namespace) -> int:
    explanation = explain_formats(
        options.expression,
        options.formats,
        parse_sizes(options.sizes),
        options.density,
        options.result,
        measure=options.html is not None,
    )
    if options.html is not None:
        return _write_page(options.html, explanation.to_html())
    if options.json:
        print(json.dumps(explanation.to_dict(), indent=2))
    else:
        print(explanation.report(source=options.source))
    return 0


def show_diagnosis(options: argparse.Namespace) -> int:
    if options.script is None:
        raise ArgumentError(
            "doctor diagnoses the model of a script: pass it, as in python -m scorch doctor train.py. "
            "To check the installation, run python -m scorch env"
        )
    try:
        sparsities = [float(text) for text in filter(None, options.sparsities.split(","))]
    except ValueError:
        raise ArgumentError(
            f"--sparsities must be numbers, as in 0.8,0.9, but got {options.sparsities!r}"
        ) from None
    arguments = options.further[1:] if options.further[:1] == ["--"] else options.further
    diagnosis = diagnose_script(
        options.script, arguments, finish=options.finish, sparsities=sparsities or SPARSITIES
    )
    if options.html is not None:
        return _write_page(options.html, diagnosis.to_html())
    print(json.dumps(diagnosis.to_dict(), indent=2) if options.json else diagnosis)
    return 0


def _write_page(path: str, html: str) -> int:
    try:
        Path(path).write_text(html, encoding="utf-8")
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None
    print(f"wrote {path}")
    return 0


def show_demo(options: argparse.Namespace) -> int:
    return demo.main(small=options.small, as_json=options.json)


def run_benchmark(options: argparse.Namespace) -> int:
    if options.help and options.suite is None:
        options.print_help()
        return 0
    if options.help:
        return bench.run(options.suite, ["--help"])
    if options.suite is None:
        if options.further:
            raise ArgumentError(f"name a suite before {options.further[0]}: one of {', '.join(bench.SUITES)}")
        _print_fields({name: suite.about for name, suite in bench.SUITES.items()}, options.json)
        return 0
    return bench.run(options.suite, options.further, quick=options.quick, as_json=options.json)


def _print_fields(fields: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(fields, indent=2))
        return
    width = max(map(len, fields)) + 2
    for name, value in fields.items():
        text = f"{value:,}" if isinstance(value, int) else str(value)
        lines = [
            wrapped for line in text.splitlines() for wrapped in textwrap.wrap(line, 100 - width) or [""]
        ]
        print(f"{name:{width}}" + ("\n" + " " * width).join(lines))
