"""Every public name has a signature, a docstring with all sections, and an entry in the reference."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from words import AMERICAN, REPLACED

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
PAGES = "\n".join(page.read_text(encoding="utf-8") for page in sorted(REFERENCE.glob("*.md")))
MODULES = [
    "scorch",
    "scorch.nn",
    "scorch.nn.masks",
    "scorch.linalg",
    "scorch.masked",
    "scorch.sparse",
    "scorch.autograd",
    "scorch.utils.data",
    "scorch.distributed",
    "scorch.formats",
]
SHOWN_WITHOUT_CONSTRUCTOR = set(re.findall(r"autoclass:: (?:\w+\.)*(\w+)\(\)", PAGES))  # Scorch creates these
# A parameter, or several, of the section Args, and what is said of it.
PARAMETER = re.compile(r"^    ((?:\*{0,2}\w+, )*\*{0,2}\w+): \S", re.MULTILINE)


def public_names(module: str) -> dict[str, Any]:
    """Return the functions and classes of a module that are Scorch's own, not PyTorch's."""
    home = importlib.import_module(module)
    found = {name: getattr(home, name) for name in home.__all__ if not name.startswith("_")}
    return {
        name: value
        for name, value in found.items()
        if (getattr(value, "__module__", None) or "").startswith("scorch")
        and not (inspect.isclass(value) and issubclass(value, Exception))
    }


def names_within(name: str, value: Any) -> Iterator[str]:
    """Yield the names that users write: of a function or class, its own methods, and their parameters."""
    yield from (name, *inspect.signature(value).parameters)
    for member, method in vars(value).items() if inspect.isclass(value) else ():
        if member[0] != "_":
            yield from (member, *(inspect.signature(method).parameters if inspect.isfunction(method) else ()))


def section(doc: str, title: str) -> str:
    """Return the indented lines below a title of a docstring."""
    found = re.search(rf"^{title}::?\n((?:\n|    .*\n?)+)", doc, re.MULTILINE)
    return found[1] if found else ""


def gaps(name: str, value: Any) -> Iterator[str]:
    """Name what the documentation of a function or class lacks."""
    doc, signature = inspect.getdoc(value) or "", inspect.signature(value)
    is_class = inspect.isclass(value)
    is_built = is_class and name in SHOWN_WITHOUT_CONSTRUCTOR
    parameters = [] if is_built else [key for key in signature.parameters if key[0] != "_"]
    said = {key.strip("* ") for names in PARAMETER.findall(section(doc, "Args")) for key in names.split(",")}
    if set(parameters) != said and not is_built:
        yield f"Args: {sorted(set(parameters) ^ said)}"
    if signature.parameters.keys() == {"args", "kwargs"}:
        yield "a signature"
    if not is_class and signature.return_annotation not in (None, "None") and not section(doc, "Returns"):
        yield "Returns"
    if not is_class and parameters and not section(doc, "Raises"):
        yield "Raises"
    if not section(doc, "Example") and name != "LevelArrays":  # which kernels are written with
        yield "an example"
    if not re.search(rf"auto(function|class):: (\w+\.)*{name}\b", PAGES):
        yield "an entry in docs/reference"


@pytest.mark.whole
@pytest.mark.parametrize("module", MODULES)
def test_public_names_are_documented(module: str) -> None:
    names = public_names(module)
    assert names
    lacking = {name: list(gaps(name, value)) for name, value in names.items()}
    assert {name: lacks for name, lacks in lacking.items() if lacks} == {}


def test_gaps_are_found() -> None:
    def bare(x: int, y: int) -> int:
        """Add.

        Args:
            x: a number.
        """
        return x + y

    assert list(gaps("bare", bare)) == [
        "Args: ['y']", "Returns", "Raises", "an example", "an entry in docs/reference"
    ]  # fmt: skip


@pytest.mark.parametrize("module", ["scorch", "scorch.masked"])
def test_examples_of_generated_docstrings_print_what_they_say(module: str) -> None:
    """Those of functions that a table describes, which no source file shows to doctest."""
    generated = {
        name: value
        for name, value in public_names(module).items()
        if value.__module__ in ("scorch._src.ops.reduction.maskable", "scorch.masked")
    }
    runner, said = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE), []
    for name, value in generated.items():
        test = doctest.DocTestParser().get_doctest(value.__doc__, {}, name, None, None)
        runner.run(test, out=said.append)
    assert runner.tries >= 3 * len(generated) > 0 and runner.failures == 0, "".join(said)


@pytest.mark.parametrize("module", MODULES)
def test_names_have_american_spelling(module: str) -> None:
    names = {each for name, value in public_names(module).items() for each in names_within(name, value)}
    british = re.compile("|".join(words for words, instead in REPLACED.items() if instead == AMERICAN))
    assert [name for name in sorted(names) if british.search(name.replace("_", " "))] == []
