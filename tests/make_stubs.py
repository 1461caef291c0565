"""Writes the ``.pyi`` files that tell editors and type checkers which names of torch ``scorch`` has.

    python tests/make_stubs.py

``scorch/__init__.pyi`` has all names of torch, and Scorch's own with the types that ``format=`` and
``density=`` give them; ``scorch/nn/functional.pyi`` and its like have the names of torch's modules of that
name, and what ``scorch/nn/__init__.py`` and its like add.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import torch

import scorch
from scorch._src.ops.reduction.maskable import FUNCTIONS

ROOT = Path(scorch.__file__).parent
HEADER = '"""Made by tests/make_stubs.py for torch {}; do not edit."""\n\n'
# fmt: off
MODULES = [
    "amp", "autograd", "autograd.functional", "backends", "cuda", "distributed", "distributions", "fft",
    "func", "hub", "jit",
    "linalg", "mps", "multiprocessing", "nn", "nn.functional", "nn.init", "nn.modules", "nn.parallel",
    "nn.parameter", "nn.utils", "nn.utils.parametrizations", "nn.utils.parametrize", "nn.utils.prune",
    "nn.utils.rnn", "onnx", "optim", "optim.lr_scheduler", "optim.swa_utils", "overrides", "package",
    "profiler", "random", "serialization", "sparse", "special", "utils", "utils.benchmark",
    "utils.checkpoint", "utils.data", "utils.dlpack",
]
# fmt: on

UNTYPED = ("Storage", "reduce_op", "tqdm")  # which torch does not list, is about to drop, or only borrows

OPTIONS = (
    "dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: Any = None, "
    "requires_grad: bool = False, pin_memory: bool = False, out: Tensor | None = None, "
    "generator: torch.Generator | None = None, memory_format: torch.memory_format | None = None"
)
MAKERS = {  # what stands before the options
    "arange": "*bounds: Any",
    "as_tensor": "data: Any, *",
    "asarray": "obj: Any, *",
    "bernoulli": "input: Tensor, *args: Any",
    "diag": "input: Tensor, diagonal: int = 0, *",
    "diag_embed": "input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1, *",
    "diagflat": "input: Tensor, offset: int = 0, *",
    "empty": "*size: Any",
    "empty_like": "input: Tensor, *",
    "eye": "n: int, m: int | None = None, *",
    "from_numpy": "array: Any, *",
    "full": "size: Any, fill_value: Any, *",
    "full_like": "input: Tensor, fill_value: Any, *",
    "linspace": "start: Any, end: Any, steps: int, *",
    "logspace": "start: Any, end: Any, steps: int, base: float = 10.0, *",
    "ones": "*size: Any",
    "ones_like": "input: Tensor, *",
    "randperm": "n: int, *",
    "tensor": "data: Any, *",
    "zeros": "*size: Any",
    "zeros_like": "input: Tensor, *",
}
RANDOM = {
    "normal": "mean: Any, std: Any = 1.0, size: Any = None, *",
    "rand": "*size: Any",
    "rand_like": "input: Tensor, *",
    "randint": "*bounds_and_size: Any",
    "randint_like": "input: Tensor, *bounds: int",
    "randn": "*size: Any",
    "randn_like": "input: Tensor, *",
}


def stubs() -> dict[Path, str]:
    """The text of every stub."""
    found = {ROOT / "__init__.pyi": _of_package()}
    for name in MODULES:
        place = ROOT.joinpath(*name.split("."))
        has_modules = any(other.startswith(f"{name}.") for other in MODULES)
        is_package = has_modules or (place / "__init__.py").exists()
        path = place / "__init__.pyi" if is_package else place.with_suffix(".pyi")
        found[path] = _header() + _of_module(importlib.import_module(f"torch.{name}"), name)
    return found


def _header() -> str:
    return HEADER.format(torch.__version__.partition("+")[0])


def _of_package() -> str:
    imports = [
        node
        for node in _statements(ast.parse((ROOT / "__init__.py").read_text()).body)
        if isinstance(node, ast.ImportFrom)
    ]
    own = {alias.name for node in imports for alias in node.names} & set(scorch.__all__)
    lines = [
        "from collections.abc import Iterable",
        "from typing import Any, overload",
        "",
        "import torch",
        "from torch import Tensor as Tensor",
        "",
    ]
    lines += ["__version__: str", ""]
    # In this file int, bool and float are dtypes.
    lines += [
        re.sub(r"\b(int|bool|float)\b(?!\.)", r"builtins.\1", line) for n in sorted(own) for line in _own(n)
    ]
    lines += [_maskable(name) for name in sorted(FUNCTIONS)]
    own |= FUNCTIONS.keys()
    names = [name for name in _public(torch) if name not in own and name not in ("Tensor", "torch", "Any")]
    modules = ["formats", *(name for name in MODULES if "." not in name and _own_names(name))]
    lines += [f"from scorch import {name} as {name}" for name in modules]
    names = [name for name in names if name not in modules]
    return _header() + "\n".join(lines) + "\n\n" + _borrowed(torch, names)


def _own_names(name: str) -> list[str]:
    """What a module of Scorch lists in ``__all__``; nothing if it has no file."""
    place = ROOT.joinpath(*name.split("."))
    for path in (place / "__init__.py", place.with_suffix(".py")):
        for node in ast.parse(path.read_text()).body if path.exists() else ():
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__":
                return list(ast.literal_eval(node.value))
    return []


def _own(name: str) -> Iterator[str]:
    """The lines for a name of Scorch's own."""
    value = getattr(scorch, name)
    if isinstance(value, types.ModuleType):
        yield f"from scorch import {name} as {name}"
    elif name in MAKERS:
        yield from _overloads(name, MAKERS[name], ["format: None = None"], ["format: str | Format"])
    elif name in RANDOM:
        plain, given = ["density: None = None", "format: None = None"], "format: str | Format"
        drawn = [["density: float", f"{given} | None = None"], ["density: None = None", given]]
        yield from _overloads(name, RANDOM[name], plain, *drawn)
    elif name.startswith(("from_", "sparse_")):
        signature = inspect.signature(value).replace(return_annotation="SparseTensor")
        yield re.sub(r"(: |-> )'([^']*)'", r"\1\2", f"def {name}{signature}: ...")
    else:
        yield f"from {value.__module__} import {name} as {name}"


def _maskable(name: str) -> str:
    """A reduction that takes ``masked=`` too: PyTorch's overloads cannot be extended."""
    result = "Any" if name in ("max", "min", "median") else "Tensor"
    arguments = "input: Tensor, *args: Any, masked: builtins.bool = False, **kwargs: Any"
    return f"def {name}({arguments}) -> {result}: ..."


def _overloads(name: str, head: str, plain: list[str], *sparse: list[str]) -> Iterator[str]:
    for options, result in [(plain, "Tensor"), *((given, "SparseTensor") for given in sparse)]:
        yield f"@overload\ndef {name}({', '.join([head, *options, OPTIONS])}) -> {result}: ..."


def _of_module(module: types.ModuleType, name: str) -> str:
    below = {other.rpartition(".")[2] for other in MODULES if other.rpartition(".")[0] == name}
    own = _own_names(name)
    names = [found for found in _public(module) if found not in below and found not in own]
    modules = "".join(f"from scorch.{name} import {part} as {part}\n" for part in sorted(below))
    added = "".join(_own_line(importlib.import_module(f"scorch.{name}"), part) for part in sorted(own))
    return _borrowed(module, names) + modules + added


def _own_line(module: types.ModuleType, name: str) -> str:
    value = getattr(module, name)
    is_module = isinstance(value, types.ModuleType)
    home = value.__name__.rpartition(".")[0] if is_module else value.__module__
    return f"from {home} import {name} as {name}\n"


def _borrowed(module: types.ModuleType, names: list[str]) -> str:
    """The names that a type checker finds in the module too, and the others as ``Any``."""
    seen = _visible(module.__name__)
    known = [name for name in names if name in seen]
    hidden = [name for name in names if name not in seen]
    lines = [f"from {module.__name__} import (", *(f"    {name} as {name}," for name in known), ")"]
    if hidden:
        lines = ["from typing import Any", "", *lines, "", *(f"{name}: Any" for name in hidden)]
    return "\n".join(lines) + "\n"


def _public(module: types.ModuleType) -> list[str]:
    """The names that are torch's, and not of what it imports."""
    kept = []
    for name in dir(module):
        value = None if name in UNTYPED else getattr(module, name)
        is_module = isinstance(value, types.ModuleType)
        origin = value.__name__ if is_module else getattr(value, "__module__", None) or "torch"
        is_own = str(origin).startswith(("torch", "builtins")) and name != "TYPE_CHECKING"
        if not name.startswith("_") and name.isidentifier() and is_own and name not in UNTYPED:
            kept.append(name)
    return sorted(kept)


@functools.cache
def _visible(name: str) -> frozenset[str]:
    """The names that the source or the stub of a module binds at its top, stars followed."""
    path = _source(name)
    if path is None:
        return frozenset()
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    found = {entry.stem for entry in path.parent.iterdir()} if path.stem == "__init__" else set()
    for node in _statements(ast.parse(path.read_text()).body):
        match node:
            case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef():
                found.add(node.name)
            case ast.Assign():
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=target)):
                found.add(target)
            case ast.Import():
                found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            case ast.ImportFrom():
                base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                origin = ".".join([*base, *([node.module] if node.module else [])])
                for alias in node.names:
                    is_passed_on = path.suffix == ".py" or alias.asname == alias.name
                    if alias.name == "*":
                        found |= _starred(origin)
                    elif is_passed_on:
                        found.add(alias.asname or alias.name)
    return frozenset(found)


def _starred(name: str) -> frozenset[str]:
    listed = getattr(sys.modules.get(name), "__all__", None)
    seen = _visible(name)
    return seen if listed is None else seen & frozenset(listed)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for part in ("body", "orelse", "handlers", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
                yield from _statements(getattr(node, part, []))


def _source(name: str) -> Path | None:
    parts = name.split(".")[1:]
    place = Path(torch.__file__).parent.joinpath(*parts)
    for path in (
        place / "__init__.pyi",
        place.with_suffix(".pyi"),
        place / "__init__.py",
        place.with_suffix(".py"),
    ):
        if path.exists():
            return path
    return None


def main() -> None:
    if sys.argv[1:] == ["--print"]:  # for the test: what torch has depends on what was imported before
        print(json.dumps({str(path): text for path, text in stubs().items()}))
        return
    for path, text in stubs().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
