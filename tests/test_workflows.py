"""The files that tell services and Git what to run parse, and say what the project says elsewhere."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
METADATA = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def read(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_one(path: Path) -> None:
    workflow = read(path)
    assert {"name", True, "jobs", "permissions"} <= set(workflow)  # YAML reads the word "on" as True
    for job in workflow["jobs"].values():
        assert job["runs-on"] and job["timeout-minutes"] and job["steps"]
    for step in steps(workflow):
        assert ("uses" in step) != ("run" in step)
        assert re.fullmatch(
            r"(actions/[a-z-]+@v\d+|pypa/[a-z-]+@release/v1)", step.get("uses", "actions/none@v1")
        )


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_commands_contain_no_names_that_others_choose(path: Path) -> None:
    inserted = re.findall(r"\$\{\{ (.+?) \}\}", "\n".join(step.get("run", "") for step in steps(read(path))))
    assert set(inserted) <= {"github.sha", "matrix.tests"}


@pytest.mark.parametrize("name", ["tests", "nightly"])
def test_workflows_run_the_command_that_developers_run(name: str) -> None:
    path = ROOT / ".github" / "workflows" / f"{name}.yml"
    commands = [step["run"] for step in steps(read(path)) if "run" in step]
    assert commands
    for command in commands:
        assert shlex.split(command)[:2] == ["python", "start.py"]
        assert shlex.split(command)[2] in ("test", "smoke")


def test_the_tests_run_on_all_systems_and_pythons() -> None:
    matrix = read(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == re.findall(r'Python :: (3\.\d+)"', METADATA)
    assert [name.split("-")[0] for name in matrix["system"]] == ["ubuntu", "ubuntu", "macos", "windows"]
    assert any(name.endswith("-arm") for name in matrix["system"])


def test_everything_runs_at_night() -> None:
    workflow = read(ROOT / ".github" / "workflows" / "nightly.yml")
    assert workflow[True]["schedule"]
    assert any("--long" in step.get("run", "") for step in steps(workflow))
    parts = workflow["jobs"]["long"]["strategy"]["matrix"]["include"]
    rest = parts[-1]["tests"].split()
    named = {word for part in parts[:-1] for word in part["tests"].split()}
    assert rest[0] == "tests" and {word.removeprefix("--ignore=") for word in rest[1:]} == named
    assert all((ROOT / folder).is_dir() for folder in named)


def test_commits_are_checked_as_the_test_command_checks() -> None:
    [local] = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    entries = " ".join(hook["entry"] for hook in local["hooks"])
    spec = importlib.util.spec_from_file_location("start_for_workflows", ROOT / "start.py")
    assert spec is not None and spec.loader is not None
    start = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(start)
    for linter in ("ruff check", "ruff format", "mypy", "lint-imports"):
        assert linter in entries
    assert {"ruff", "mypy", "importlinter"} <= set(start.MODULES["test"])
    assert all(hook["language"] == "system" for hook in local["hooks"])


def test_contributing_tells_of_the_layers() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    contract = METADATA[METADATA.index("Imports point one way") :]
    layers = re.findall(r"[a-z_]+", contract[contract.index("layers = [") + 10 : contract.index("\n]")])
    rows = page[page.index("## The source tree") : page.index("## Add an operator")]
    first_column = "".join(re.findall(r"^\| (`.*?) \|", rows, re.MULTILINE))
    assert re.findall(r"`(\w+)`", first_column) == layers


def test_releases_are_published_without_a_token() -> None:
    jobs = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"} and jobs["publish"]["needs"] == "build"
    assert "python -m tools.release package" in " ".join(
        step.get("run", "") for step in jobs["build"]["steps"]
    )
    assert "secrets." not in "".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda p: p.stem
)
def test_issue_templates_ask_for_what_helps(path: Path) -> None:
    template = read(path)
    assert template["name"] and template["description"] and template["labels"]
    asked = {field["id"]: field for field in template["body"]}
    assert all(field["attributes"]["label"] for field in asked.values())
    if path.stem != "feature":
        assert "python -m scorch env" in asked["env"]["attributes"]["description"]


def test_citation_is_that_of_the_paper() -> None:
    citation = read(ROOT / "CITATION.cff")
    names = [author["family-names"] for author in citation["preferred-citation"]["authors"]]
    assert names == ["Yan", "Root", "Gale", "Broman", "Kjolstad"]
    assert citation["cff-version"] and citation["license"] == "MIT"
