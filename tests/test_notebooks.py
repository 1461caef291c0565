"""Notebooks are the tutorials, and run."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest
from tools import notebooks

NOTEBOOKS = sorted(notebooks.NOTEBOOKS.glob("*.ipynb"))


def test_notebooks_are_current() -> None:
    assert NOTEBOOKS
    assert notebooks.write_all(check=True) == [], "run python -m tools.notebooks"


@pytest.mark.sampled(4)  # each is a page that tests/test_docs.py runs
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile("".join(cell["source"]), cell["id"], "exec"), namespace)
            if cell["outputs"]:
                assert said.getvalue().rstrip("\n") == "".join(cell["outputs"][0]["text"])


def test_pages_become_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    monkeypatch.setattr(notebooks, "PAGES", tmp_path / "docs" / "tutorials")
    page = tmp_path / "docs" / "tutorials" / "one.md"
    page.parent.mkdir(parents=True)
    code = "```python\nprint(1)\n```\n\n```text\n1\n```\n\n```sh\nls\n```\n"
    page.write_text("# One\n\nSee [it](../guide/it.md#part).\n\n" + code)
    cells = notebooks.convert(page)["cells"]
    assert [cell["cell_type"] for cell in cells] == ["markdown", "code", "markdown"]
    assert "[it](../docs/guide/it.md#part)" in "".join(cells[0]["source"])
    assert cells[1]["outputs"][0]["text"] == ["1"]
    assert cells[2]["source"][0] == "```sh\n"
