"""``python -m scorch``: the machine, the cache, explanations, benchmarks and a demonstration in a shell."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from scorch._src import __version__
from scorch._src.backends import cache
from scorch._src.backends.cpu import toolchain
from scorch._src.cli import bench, demo, plan, warm
from scorch._src.explain.explain_statement import explain
from scorch._src.explain.report import Explanation
from scorch._src.formats import as_format
from scorch._src.notation.indexing import parse
from scorch._src.notation.trees import accesses
from scorch._src.tensor.create.build import from_coordinates
from scorch.errors import (
    ArgumentError,
    FormatError,
    NotationError,
    ScorchError,
    ShapeError,
    add_note,
    counted,
)

NOMINAL_SIZE = 1000
NOMINAL_ELEMENTS = 10**6  # of a tensor of order 3 or more
MAX_ENTRIES = 50_000_000

EPILOG = """\
examples:
  python -m scorch explain "ij,jk->ik" csr dense
  python -m scorch explain "ij,jk->ik" csr csr --sizes i=1e6,j=1e6,k=1e6 --density 1e-6
  python -m scorch explain "D[i,j] = A[i,k] * B[k,j] + C[i,j]" A=csr B=csr C=dcsr --source
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
    if options.command is run_benchmark:
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
        description="Scorch computes tensor expressions over any mix of sparse and dense formats.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=None)
    parser.add_argument("--version", action="version", version=f"scorch {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="{env,cache,explain,plan,demo,bench}")

    def add(name: str, run: Callable[[argparse.Namespace], int], **options: Any) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = commands.add_parser(
            name, formatter_class=argparse.RawDescriptionHelpFormatter, **options
        )
        command.set_defaults(command=run, print_help=command.print_help)
        return command

    add("env", show_environment, help="show the compiler, processor and versions in use")
    command = add("cache", show_cache, help="show, clear or fill the compiled kernels on disk")
    command.add_argument("--clear", action="store_true", help="remove them all")
    command.add_argument("--warm", action="store_true", help="compile the usual kernels now, on all cores")
    command = add(
        "explain",
        show_explanation,
        help="show how an expression is computed",
        description="Show how an expression over random tensors is computed: formats, loops, reasons.",
        epilog=EPILOG,
    )
    command.add_argument("expression", help='an einsum equation, or an index expression with "="')
    command.add_argument("formats", nargs="*", metavar="FORMAT", help="one for each operand, or NAME=FORMAT")
    command.add_argument("--sizes", default="", metavar="i=100,j=200", help="sizes of indices (default 1000)")
    command.add_argument("--density", type=float, default=0.01, help="of the sparse operands (default 0.01)")
    command.add_argument("--result", metavar="FORMAT", help="ask for the format of the result")
    command.add_argument("--source", action="store_true", help="print the generated C too")
    command = add(
        "plan",
        plan.show_plan,
        help="predict a training step on a graph over many processes",
        description="Predict bytes, memory and time of a training step over many processes.",
        epilog=PLAN_EPILOG,
    )
    command.add_argument("graph", metavar="GRAPH", help="a file with a matrix, or with a vector of degrees")
    command.add_argument("--workers", type=int, required=True, help="how many processes, one a machine")
    command.add_argument("--network", default="10GbE", help="such as 10GbE, 100Gb or 50us,1.1GB/s")
    command.add_argument("--features", default="128", metavar="128,64", help="columns of the products")
    command.add_argument(
        "--cuts", default="work", help="rows cut by work, even, random, or by a file of cuts"
    )
    command.add_argument("--partition", metavar="FILE", help="the worker of each row, as partitioners write")
    command.add_argument("--wire", choices=sorted(plan.WIRES), help="the dtype of rows on their way")
    command.add_argument("--memory", type=float, metavar="GB", help="of one worker: what is larger is marked")
    command = add("demo", show_demo, help="run a short demonstration beside torch.sparse and dense")
    command.add_argument("--small", action="store_true", help="on small tensors, where times say little")
    command = add(
        "bench",
        run_benchmark,
        help="run a suite of benchmarks, or list them",
        description="Run a suite of benchmarks, with arguments of its own; without a name, list them.",
        epilog=BENCH_EPILOG,
        add_help=False,
    )
    command.add_argument("suite", nargs="?", metavar="SUITE", help=f"one of {', '.join(bench.SUITES)}")
    command.add_argument("--quick", action="store_true", help="a run of seconds, to see that it works")
    command.add_argument("-h", "--help", action="store_true", help="of this command, or of the suite named")
    for command in commands.choices.values():
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


# the commands ----------------------------------------------------------------------------------------


def show_environment(options: argparse.Namespace) -> int:
    _print_fields({"scorch": __version__, **toolchain.describe()}, options.json)
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
        options.expression, options.formats, _parse_sizes(options.sizes), options.density, options.result
    )
    if options.json:
        print(json.dumps(explanation.to_dict(), indent=2))
    else:
        print(explanation.report(source=options.source))
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


# tensors to explain ----------------------------------------------------------------------------------


def explain_formats(
    text: str, formats: Sequence[str], sizes: Mapping[str, int], density: float, result: str | None
) -> Explanation:
    """Explain an expression over random tensors in these formats."""
    if not 0 <= density <= 1:
        raise ShapeError(f"density must be between 0 and 1; --density is {density}")
    torch.manual_seed(0)
    if "=" in text or "[" in text:
        statement = parse(text)
        indices = {access.tensor: access.indices for access in accesses(statement.assign.value)}
        formats_by_name = _parse_formats(indices, formats)
        size = _sizes([*indices.values(), statement.assign.target.indices], sizes)
        tensors = {
            name: _random_tensor(name, indices[name], form, size, density)
            for name, form in formats_by_name.items()
        }
        return explain(text, format=result, **tensors)
    terms, _, output = text.partition("->")
    labels = [tuple(re.findall(r"[A-Za-z]", term)) for term in terms.split(",")]
    if len(formats) != len(labels):
        raise NotationError(
            f"{text!r} has {counted(len(labels), 'operand')}, but {counted(len(formats), 'format')} "
            f"{'is' if len(formats) == 1 else 'are'} given; name one for each, such as csr or dense"
        )
    size = _sizes([*labels, tuple(re.findall(r"[A-Za-z]", output))], sizes)
    operands = [
        _random_tensor(f"operand {number}", letters, form, size, density)
        for number, (letters, form) in enumerate(zip(labels, formats, strict=True))
    ]
    return explain(text, *operands, format=result)


def _parse_formats(indices: Mapping[str, tuple[str, ...]], formats: Sequence[str]) -> dict[str, str]:
    formats_by_name: dict[str, str] = {}
    for argument in formats:
        name, equals, form = argument.partition("=")
        if not equals or not form:
            raise FormatError(
                f"{argument!r} must say which tensor it is for, such as {next(iter(indices))}={argument}"
            )
        if name not in indices:
            raise NotationError(f"{name!r} is given but not used; the operands are {', '.join(indices)}")
        formats_by_name[name] = form
    missing = [name for name in indices if name not in formats_by_name]
    if missing:
        example = " ".join(f"{name}=csr" for name in missing)
        raise NotationError(f"no format is given for {', '.join(missing)}; add for example {example}")
    return formats_by_name


def _parse_sizes(text: str) -> dict[str, int]:
    sizes = {}
    for item in filter(None, text.split(",")):
        name, _, value = item.partition("=")
        try:
            number = float(value)
            sizes[name.strip()] = int(number)
            if number != int(number) or number < 0:
                raise ValueError
        except (ValueError, OverflowError):
            raise ShapeError(f"--sizes has {item!r}; use the form i=100,j=200") from None
    return sizes


def _sizes(tensors: Sequence[tuple[str, ...]], passed: Mapping[str, int]) -> dict[str, int]:
    """Return a size for each index: as passed, else nominal, smaller where tensors have many dimensions."""
    indices = dict.fromkeys(index for tensor in tensors for index in tensor)
    unknown = [index for index in passed if index not in indices]
    if unknown:
        raise ShapeError(f"--sizes names {unknown[0]!r}, but the indices are {', '.join(indices)}")
    order = max(map(len, tensors), default=0)
    nominal = NOMINAL_SIZE if order < 3 else max(2, round(NOMINAL_ELEMENTS ** (1 / order)))
    return {index: passed.get(index, nominal) for index in indices}


def _random_tensor(
    name: str, indices: tuple[str, ...], format: str, sizes: Mapping[str, int], density: float
) -> torch.Tensor:
    """Draw a random tensor in ``format``; repeated coordinates are one entry."""
    shape = tuple(sizes[index] for index in indices)
    try:
        form = as_format(format, len(shape))
    except FormatError as error:
        add_note(error, f"in the format of {name}")
        raise
    elements = math.prod(shape)
    entries = elements if form.is_dense else round(elements * density)
    if entries > MAX_ENTRIES:
        raise ShapeError(
            f"{name} would have {entries:,} entries, more than {MAX_ENTRIES:,}; "
            "give smaller --sizes or a smaller --density"
        )
    if form.is_dense:
        return torch.rand(shape)
    coordinates = [torch.randint(max(size, 1), (entries,)) for size in shape]
    return from_coordinates(coordinates, torch.rand(entries), shape, form)
