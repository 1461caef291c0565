"""The README shows what really happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fork_server import run_python

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
FIRST_SCREEN = README[: README.index("\n## ")]
EXAMPLE = re.compile(r"<!-- example -->\n```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def examples() -> list[tuple[str, str]]:
    return EXAMPLE.findall(README)


@pytest.mark.parametrize(("code", "printed"), examples())
def test_example_prints_what_the_readme_says(code: str, printed: str) -> None:
    done = run_python(["-c", code])
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed


def test_every_marked_example_is_found() -> None:
    assert len(examples()) == README.count("<!-- example -->") > 0


def test_first_screen_shows_one_short_example() -> None:
    [(code, _)] = EXAMPLE.findall(FIRST_SCREEN)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


def test_first_screen_gives_exactly_two_commands() -> None:
    blocks = re.findall(r"```sh\n(.*?)```", FIRST_SCREEN, re.DOTALL)
    commands = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    assert commands == ["python3 start.py demo", "python3 start.py test"]
    assert FIRST_SCREEN.count("python3 ") == FIRST_SCREEN.count("start.py") == 2


def test_links_lead_somewhere() -> None:
    root = Path(__file__).resolve().parent.parent
    links = re.findall(r"\]\(([^)#]+)", README)
    assert [link for link in links if "://" not in link and not (root / link).exists()] == []


def test_site_begins_with_the_example_of_the_readme() -> None:
    index = (Path(__file__).resolve().parent.parent / "docs" / "index.md").read_text(encoding="utf-8")
    [(code, printed)] = EXAMPLE.findall(FIRST_SCREEN)
    assert f"```python\n{code}```\n\n```text\n{printed}```" in index
