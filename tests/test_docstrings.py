"""Examples in docstrings print what they say."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"


def modules() -> list[str]:
    """The modules whose docstrings have examples; packages only pass names on."""
    files = [path for path in sorted((SOURCE / "scorch").rglob("*.py")) if ">>> " in path.read_text("utf-8")]
    names = [path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".") for path in files]
    return [name for name in names if not name.endswith("__init__")]


class Finder(doctest.DocTestFinder):
    """Find the examples of decorated functions too, which are those of the module that wrote them."""

    def _from_module(self, module: Any, object: Any) -> bool:
        return super()._from_module(module, inspect.unwrap(object))  # type: ignore[misc]


@pytest.mark.whole
@pytest.mark.parametrize("name", modules())
def test_examples_print_what_they_say(name: str) -> None:
    module = importlib.import_module(name)
    finder, said = Finder(exclude_empty=True), []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in finder.find(module, module.__name__, module=module):
        runner.run(test, out=said.append)
    assert runner.tries and runner.failures == 0, "".join(said)
