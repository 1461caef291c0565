"""Private names of torch: each one is in this torch, and none is used but through ``torch_internals``."""

from __future__ import annotations

import ast
import importlib.util
import random
import re
import runpy
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from scorch._src import torch_internals
from scorch.errors import TorchVersionError
from source_trees import SOURCE, nodes_of, tree_of

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(set(SOURCE.rglob("*.py")) - {Path(torch_internals.__file__)})
PRIVATE_PATH = re.compile(r"torch(\.\w+)*\._[a-zA-Z]\w*(\.\w+)*")
ALLOWED = {*torch_internals.OPERATORS, *(n for names in torch_internals.ATTRIBUTES.values() for n in names)}


def fake_context() -> Any:
    from torch._subclasses import FakeTensorMode

    return torch_internals.look_up("torch._library.fake_impl.FakeImplCtx")(FakeTensorMode(), None)


# Attributes that only instances have.
EXAMPLES: dict[str, Callable[[], Any]] = {
    "torch.nn.Module": torch.nn.Module,
    "torch.compile": lambda: torch.compile(torch.relu, backend="eager"),
    "torch._library.fake_impl.FakeImplCtx": fake_context,
}


# every name is there ---------------------------------------------------------------------------------


@pytest.mark.parametrize("places", torch_internals.all_places(), ids=lambda places: places[0])
def test_torch_has_every_private_name(places: tuple[str, ...]) -> None:
    assert torch_internals.first_of(*places) is not None


@pytest.mark.parametrize("owner", torch_internals.ATTRIBUTES)
def test_torch_has_every_private_attribute(owner: str) -> None:
    example = EXAMPLES[owner]() if owner in EXAMPLES else torch_internals.look_up(owner)
    missing = [name for name in torch_internals.ATTRIBUTES[owner] if not hasattr(example, name)]
    assert not missing


@pytest.mark.parametrize("name", torch_internals.OPERATORS)
def test_torch_has_every_private_operator(name: str) -> None:
    assert getattr(torch.ops.aten, name).overloads()


@pytest.mark.parametrize("name", torch_internals.MODULES)
def test_torch_has_modules_that_are_recognised(name: str) -> None:
    assert importlib.util.find_spec(name) is not None


def test_lazy_names_are_found_once() -> None:
    vars(torch_internals).pop("allocate_size", None)
    first = torch_internals.allocate_size
    assert vars(torch_internals)["allocate_size"] is first
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = torch_internals.no_such_name


@pytest.mark.parametrize("name", torch_internals.OPTIONAL)
def test_optional_names_are_there_or_none(name: str) -> None:
    vars(torch_internals).pop(name, None)
    found = getattr(torch_internals, name)
    assert found is None or callable(found)


def test_optional_name_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torch_internals.OPTIONAL, "never", ("torch._no_such_module.name",))
    assert torch_internals.never is None
    del vars(torch_internals)["never"]


# what is said where one is missing -------------------------------------------------------------------


def test_missing_name_is_replaced_by_the_next_place() -> None:
    assert torch_internals.first_of("torch._C._no_such_name", "torch.nn.Linear") is torch.nn.Linear


def in_modules() -> list[str]:
    """Names that a test can take out of torch for a moment: those of modules."""
    owners = {path[0]: path[0].rpartition(".")[0] for path in torch_internals._places.values()}
    return [
        path
        for path, owner in owners.items()
        if isinstance(torch_internals.look_up(owner), types.ModuleType) and owner != "torch._VF"
    ]


@pytest.mark.parametrize("seed", range(8))
def test_import_names_all_that_is_missing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    removed = draw.sample(in_modules(), draw.randint(1, 4))
    for path in removed:
        owner, _, name = path.rpartition(".")
        monkeypatch.delattr(torch_internals.look_up(owner), name)
    with pytest.raises(TorchVersionError) as caught:
        runpy.run_path(torch_internals.__file__)
    message = str(caught.value)
    assert all(path in message for path in removed)
    assert f"torch {torch.__version__}" in message
    assert "pip install 'torch>=" in message


def test_missing_name_is_an_import_error() -> None:
    with pytest.raises(ImportError, match=r"does not have torch\._C\._no_such_name.*pip install"):
        torch_internals.first_of("torch._C._no_such_name", "torch.no_such_module.name")


def test_versions_are_those_of_the_metadata() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    bounds = re.search(r'"torch>=(\d+)\.(\d+),<(\d+)\.(\d+)"', text)
    assert bounds is not None
    oldest, above = tuple(map(int, bounds.groups()[:2])), tuple(map(int, bounds.groups()[2:]))
    newest = torch_internals.NEWEST
    assert (oldest, above) == (torch_internals.OLDEST, (newest[0], newest[1] + 1))


# no other module uses one ----------------------------------------------------------------------------


def is_private(name: str) -> bool:
    of_named_tuples = name in ("_replace", "_asdict", "_make", "_fields")
    return name.startswith("_") and not name.endswith("__") and name != "_" and not of_named_tuples


def names_of_our_own(trees: list[ast.Module]) -> set[str]:
    """Every name that Scorch defines, as a function, class, variable or attribute."""
    own = set()
    for node in (node for tree in trees for node in nodes_of(tree)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
    return own


def imported_from(tree: ast.Module) -> dict[str, str]:
    """What the names that a file imports stand for, as dotted paths."""
    found = {}
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def private_uses(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Private names of torch in a file: imported, as attributes, or spelled out for ``getattr``."""
    imports = imported_from(tree)
    for node in nodes_of(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            for alias in node.names:
                path = [*module.split("."), *alias.name.split(".")]
                if "torch" in path[:2] and any(map(is_private, path)):
                    yield f"line {node.lineno}: {'.'.join(path)}"
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in ALLOWED:
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            origin = imports.get(root.id, "") if isinstance(root, ast.Name) else None
            of_torch = origin is not None and origin.split(".")[0] == "torch"
            of_others = origin and not of_torch and not origin.startswith("scorch")
            if of_torch or (not of_others and node.attr not in own):
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            is_lookup = node.func.id in ("getattr", "hasattr", "setattr") and len(node.args) > 1
            name = node.args[1].value if is_lookup and isinstance(node.args[1], ast.Constant) else ""
            if isinstance(name, str) and is_private(name) and name not in own | ALLOWED:
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Constant) and PRIVATE_PATH.fullmatch(str(node.value)):
            yield f"line {node.lineno}: {node.value!r}"


@pytest.fixture(scope="module")
def own() -> set[str]:
    return names_of_our_own([tree_of(path) for path in FILES])


def test_no_other_module_uses_a_private_name(own: set[str]) -> None:
    found = {str(path.relative_to(SOURCE)): list(private_uses(tree_of(path), own)) for path in FILES}
    assert {path: uses for path, uses in found.items() if uses} == {}


# what torch.compile reads ----------------------------------------------------------------------------

READ = [
    path
    for path in FILES
    if set(path.relative_to(SOURCE).parts) & {"nn", "ops", "tensor", "compile", "statements"}
]


def test_classes_are_asked_for_in_tuples() -> None:
    """``isinstance(x, A | B)`` ends a graph of torch 2.8."""
    unions = [
        (str(path.relative_to(SOURCE)), node.lineno)
        for path in READ
        for node in nodes_of(tree_of(path))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass")
        if isinstance(node.args[1], ast.BinOp)
    ]
    assert unions == []


# private names are noticed ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch._C._any_requires_grad()",
        "import torch\ntorch.Tensor._make_subclass",
        "import torch\ntorch._C.DispatchKey",
        "import torch._dynamo",
        "from torch import _VF",
        "from torch._C import DispatchKey",
        "from torch.utils._pytree import tree_map",
        "from torch.overrides import _pop_mode",
        "from torch.fx import proxy\nproxy._storage",
        "def f(tensor): return tensor._make_subclass",
        "def f(tensor): return getattr(tensor, '_make_subclass')",
        "NAME = 'torch._subclasses.meta_utils'",
    ],
)
def test_private_names_are_noticed(text: str, own: set[str]) -> None:
    assert list(private_uses(ast.parse(text), own))


@pytest.mark.parametrize(
    "text",
    [
        "import sys\nsys._getframe()",
        "class A:\n    def _run(self): self._run()",
        "import torch\ntorch.ops.aten._to_copy",
        "import torch\ntorch.Tensor.__add__",
        "def f(module): return module._buffers",
        "from scorch._src.torch_internals import DispatchKey",
    ],
)
def test_names_of_others_are_let_pass(text: str, own: set[str]) -> None:
    assert list(private_uses(ast.parse(text), own | {"_run"})) == []
