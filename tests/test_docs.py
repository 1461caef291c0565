"""The documentation shows what really happens: its Python runs, and the site builds without a warning."""

from __future__ import annotations

import builtins
import dataclasses
import importlib.util
import os
import re
from pathlib import Path
from types import ModuleType

import pytest

import scorch
from fork_server import run_python
from pages import fences, python_blocks
from scorch._src.io import files
from scorch._src.io.pickling import make_tensor
from scorch._src.loops.operators import OPERATORS, REDUCTIONS
from scorch.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).parts[0] != "gallery")
PAGES.append(ROOT / "CONTRIBUTING.md")
WITH_CODE = [page for page in PAGES if python_blocks(page.read_text(encoding="utf-8"))]
OPTIONAL = ("scipy", "torch_geometric", "safetensors", "networkx", "matplotlib")
LANGUAGES = {"python", "text", "sh", "c"}  # only the first is run, so nothing else may look like it


def name_of(page: Path) -> str:
    return page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT).as_posix()


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": paths, "PYTHONUTF8": "1"}


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    code = "\n".join(block.code for block in python_blocks(page.read_text(encoding="utf-8")))
    for module in OPTIONAL:
        if re.search(rf"^\s*(import|from) {module}\b", code, re.MULTILINE):
            pytest.importorskip(module)
    done = run_python([ROOT / "tests" / "pages.py", page], cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_has_no_other_kinds_of_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    words = {fence["language"].strip() for fence in fences(text)}
    assert {word for word in words if not word.startswith("{")} <= LANGUAGES
    assert text.count("```") == 2 * len(fences(text)), "a fence that is not closed"


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("```python\nx = 1\n```\n\n```python\nprint(x)\n```\n\n```text\n1\n```\n", ""),
        ("```python\nprint(1)\n```\n\nSo it is.\n\n```text\n2\n```\n", ""),
        ("Words.\n\n```python\nprint(1)\n```\n\n```text\n2\n```\n", "block 1 (line 4) printed\n1\n"),
        ("```python\nx = 1\n```\n\n```python\ny\n```\n", "block 2 (line 6) failed"),
    ],
)
def test_wrong_page_is_found_out(page: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(page)
    done = run_python([ROOT / "tests" / "pages.py", "page.md"], cwd=tmp_path)
    assert done.returncode == bool(message)
    assert message in done.stderr


def own_names(module: ModuleType) -> list[str]:
    """The names of ``module`` that are not torch's."""
    found = {name: getattr(module, name) for name in module.__all__ if not name.startswith("_")}
    return [
        name for name, value in found.items() if (getattr(value, "__module__", "") or "").startswith("scorch")
    ]


@pytest.mark.parametrize(
    "module",
    [
        scorch,
        scorch.nn,
        scorch._src.nn.masks,
        scorch.linalg,
        scorch.masked,
        scorch.sparse,
        scorch.autograd,
        scorch.utils.data,
    ],
    ids=lambda module: module.__name__,
)
def test_reference_has_every_name(module: ModuleType) -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    names = own_names(module)
    assert names
    missing = [name for name in names if not re.search(rf"(:: (\w+\.)*|`){name}\b", text)]
    assert missing == [], "add them to a page of docs/reference"


def load_file(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_exist(page: Path) -> None:
    path = r"(?:`|tab-item} (?:Ours: )?)([a-z_]+(?:/[a-z_]+)+\.py)"
    named = re.findall(path, page.read_text(encoding="utf-8"))
    homes = (ROOT, ROOT / "src" / "scorch", ROOT / "src" / "scorch" / "_src", ROOT / "benchmarks")
    assert [name for name in named if not any((home / name).exists() for home in homes)] == []


SOURCES = sorted((ROOT / "src" / "scorch" / "_src").rglob("*.py"))
LAYERS = {path.name for path in (ROOT / "src" / "scorch" / "_src").iterdir() if path.is_dir()}


def test_links_between_files_lead_somewhere() -> None:
    """On GitHub, where pages are read as they are, and nothing is generated."""
    broken = []
    for page in [*PAGES, *ROOT.glob("*.md"), ROOT / "benchmarks" / "RESULTS.md"]:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"#|[a-z]+:", link)]
        targets = {link: page.parent / link.partition("#")[0] for link in links}
        broken += [
            (name_of(page), link)
            for link, target in targets.items()
            if not target.exists() or target.resolve().is_relative_to(DOCS / "gallery")
        ]
    assert not broken


def test_results_show_every_plot() -> None:
    shown = re.findall(
        r"\]\((plots/[^)]+)\)", (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    )
    plots = (ROOT / "benchmarks" / "plots").iterdir()
    assert sorted(shown) == sorted(f"plots/{path.name}" for path in plots)


def test_names_break_between_their_words() -> None:
    breaks = load_file("line_breaks")
    page = {"body": '<span class="pre">scorch.SparseLinear(bias=&quot;a&quot;)</span> some_long_name'}
    breaks.insert(None, "page", "page.html", page, None)
    assert page["body"] == (
        '<span class="pre">scorch.<wbr>Sparse<wbr>Linear(<wbr>bias=&quot;a&quot;)</span> some_long_name'
    )


def test_modules_that_docstrings_name_exist() -> None:
    """A docstring that says ``storage.slices`` means a module, or something in one."""
    home = ROOT / "src" / "scorch" / "_src"
    missing = []
    for path in SOURCES:
        for name in re.findall(r"``([a-z_]+(?:\.[a-z_]+)+)``", path.read_text(encoding="utf-8")):
            first, second, *_ = name.split(".")
            if first in LAYERS and not any((home / first / f"{second}{end}").exists() for end in ("", ".py")):
                missing.append((path.relative_to(home).as_posix(), name))
    assert missing == []


def test_examples_that_take_data_are_given_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = load_file("gallery_options").example_arguments
    takes, plain = tmp_path / "takes.py", tmp_path / "plain.py"
    takes.write_text('parser.add_argument("--data")')
    plain.write_text("print(1)")
    monkeypatch.setenv("SCORCH_DATA", "folder")
    assert arguments({}, {"src_file": str(takes)}) == ["--data", "folder"]
    assert arguments({}, {"src_file": str(plain)}) == []
    monkeypatch.delenv("SCORCH_DATA")
    assert arguments({}, {"src_file": str(takes)}) == []


def test_gallery_orders_examples_that_exist() -> None:
    options = load_file("gallery_options")
    scripts = {script.stem for script in (ROOT / "examples").glob("*.py")}
    assert set(options.ORDER) >= scripts - {"__init__"}, (
        "give new examples their place in docs/gallery_options.py"
    )
    assert set(options.ORDER) <= scripts
    order = options.ExampleOrder("")
    assert sorted(["gat.py", "zz.py", "first_steps.py"], key=order) == ["first_steps.py", "gat.py", "zz.py"]


@pytest.mark.long
def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    # The examples are run by test_examples.py, so the gallery shows their text only.
    options = ["-q", "-W", "--keep-going", "-n", "-D", "plot_gallery=0", "-d", tmp_path / "doctrees"]
    words = ["-m", "sphinx", "-b", "html", *options, DOCS, tmp_path / "site"]
    done = run_python(words, cwd=ROOT, env=environment())
    assert done.returncode == 0, done.stderr
    for page in ("index", "guide/first-steps", "reference/index", "what-works", "results"):
        assert (tmp_path / "doctrees" / f"{page}.doctree").exists()
        assert (tmp_path / "site" / f"{page}.html").exists()


def test_guide_lists_every_function_of_evaluate() -> None:
    page = (DOCS / "guide" / "einsum-and-evaluate.md").read_text(encoding="utf-8")
    listed = re.search(r"The elementwise functions are (.*?)\. The reductions are (.*?)\.", page, re.DOTALL)
    assert listed is not None
    functions, reductions = (set(re.findall(r"`(\w+)`", names)) for names in listed.groups())
    assert functions == {name for name, row in OPERATORS.items() if not row.symbol}
    assert reductions == set(REDUCTIONS)


def test_guide_lists_every_file_suffix() -> None:
    page = (DOCS / "guide" / "interop.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\..*?) \|", page, re.MULTILINE)
    assert {suffix for row in rows for suffix in re.findall(r"`(.*?)`", row)} == set(files._FILE_KINDS)


def test_guide_lists_every_setting() -> None:
    page = (DOCS / "guide" / "settings-and-errors.md").read_text(encoding="utf-8")
    table = page[: page.index("## Errors")]
    fields = [field.name for field in dataclasses.fields(Settings)]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(fields)


def test_guide_lists_every_extra() -> None:
    page = (DOCS / "guide" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`.*?) \|", page, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = set(re.findall(r"^(\w+) = ", section, re.MULTILINE))
    assert listed == extras - {"zig"}, "zig is the former name of compiler"


def test_guide_quotes_the_error_of_a_file_that_is_loaded_without_scorch() -> None:
    page = (DOCS / "guide" / "interop.md").read_text(encoding="utf-8")
    assert f"`Unsupported global: GLOBAL {make_tensor.__module__}...`" in page


def test_guide_lists_every_error_and_its_builtin() -> None:
    page = (DOCS / "guide" / "settings-and-errors.md").read_text(encoding="utf-8")
    table = [line for line in page.splitlines() if line.startswith("| `") and "Error`" in line]
    classes = {
        name: value
        for name, value in vars(scorch.errors).items()
        if isinstance(value, type) and issubclass(value, scorch.errors.ScorchError)
    }
    known = {*classes, *vars(builtins)}
    assert {name for line in table for name in re.findall(r"`(\w+Error)`", line)} >= {*classes} - {
        "ScorchError"
    }
    for line in table:
        _, names, bases, *_ = line.split("|")
        for name in re.findall(r"`(\w+)`", names):
            for base in re.findall(r"`(\w+)`", bases):
                assert base in known and base in {each.__name__ for each in classes[name].__mro__}, line
