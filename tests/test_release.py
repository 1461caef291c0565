"""A release is what its tag says, and the sites of versions stand side by side."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools import release

import scorch
from scorch._src.cli.bench import SUITES

ROOT = Path(__file__).resolve().parent.parent
WHEEL_BYTES = 1_540_000  # of compressed files; raise it when what users run has grown


def test_one_version() -> None:
    recipe = (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    [named] = re.findall(r'version: "(.+)"', recipe)
    assert release.read_version() == scorch.__version__ == named


def test_the_conda_package_needs_and_starts_what_the_wheel_does() -> None:
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    [command] = re.findall(r'\[project.scripts\]\n(\w+) = "(.+)"', project)
    assert recipe["build"]["python"]["entry_points"] == [" = ".join(command)]
    listed = project[project.index("dependencies = [") : project.index("[project.scripts]")]
    needed = {
        name.replace("torch", "pytorch", 1) for name in re.findall(r'^    "(.+?)"', listed, re.MULTILINE)
    }
    assert {needs.replace(" ", "") for needs in recipe["requirements"]["run"]} == {
        *needed, "python>=3.10", "c-compiler"
    }  # fmt: skip


def test_badges_have_the_supported_versions() -> None:
    readme, project = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "pyproject.toml"))
    badges = re.findall(
        r"!\[(.+?)\]\(https://img\.shields\.io/badge/\w+-([\w.%]+)-[0-9a-z]+(?: .*?)?\)", readme
    )
    shown = dict((name.split()[0], message.replace("%20", " ")) for name, message in badges)
    pythons = re.findall(r"Python :: (3\.\d+)", project)
    assert shown["Python"] == f"{pythons[0]} to {pythons[-1]}"
    [(least, beyond)] = re.findall(r'"torch>=(2\.\d+),<2\.(\d+)"', project)
    assert shown["PyTorch"] == f"{least} to 2.{int(beyond) - 1}"
    assert len(badges) == readme.count("img.shields.io")


def test_a_tag_names_the_version_and_a_section_of_the_changelog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n")
    with pytest.raises(release.ReleaseError, match=r"v1\.2\.4, but pyproject\.toml has version 1\.2\.3"):
        release.check_tag("v1.2.4")
    with pytest.raises(release.ReleaseError, match=r"no section \[1\.2\.3\]"):
        release.check_tag("v1.2.3")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.3]\n")
    release.check_tag("v1.2.3")


@pytest.mark.parametrize(
    ("version", "folders"),
    [("main", ["dev"]), ("v1.2.3", ["1.2", "stable"]), ("v1.3.0rc1", ["1.3"]), ("v1.2", ["dev"])],
)
def test_folders_of_the_site(version: str, folders: list[str]) -> None:
    assert release.folders_of(version) == folders


def test_versions_stand_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*command: str, **environment: str) -> None:
        Path(command[-1]).mkdir()
        Path(command[-1], "index.html").write_text(environment["SCORCH_DOCS_VERSION"])

    monkeypatch.setattr(release, "run", build)
    for version in ("main", "v0.9.0", "v0.10.1", "main"):
        release.build_site(version, tmp_path, [])
    listed: list[dict[str, Any]] = json.loads((tmp_path / "switcher.json").read_text())
    assert [entry["version"] for entry in listed] == ["0.10", "0.9", "dev"]
    assert [entry["url"] for entry in listed] == ["/0.10/", "/0.9/", "/dev/"]  # right on pages at any depth
    assert [entry.get("preferred", False) for entry in listed] == [True, False, False]
    assert (tmp_path / "stable" / "index.html").read_text() == "0.10"
    assert "url=stable/" in (tmp_path / "index.html").read_text()
    assert 'href="/stable/search.html"' in (tmp_path / "404.html").read_text()


def read_extras() -> dict[str, str]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table = text[text.index("[project.optional-dep") :].split("\n\n")[0]
    return dict(re.findall(r"^(\w+) = \[(.+?)\]", table, re.MULTILINE))


def test_guide_lists_every_extra() -> None:
    page = (ROOT / "docs" / "guide" / "install.md").read_text(encoding="utf-8")
    listed = {
        name for row in re.findall(r"^\| (`.+?) \|", page, re.MULTILINE) for name in re.findall(r"\w+", row)
    }
    assert listed == set(read_extras()) - {"zig"}  # the former name of "compiler"


def test_extras_of_users_bring_no_tools_of_developers() -> None:
    extras = read_extras()
    assert not {"test", "lint", "docs", "bench", "dev"} & set(re.findall(r"\w+", extras["all"]))
    assert {"test", "lint", "docs"} <= set(re.findall(r"\w+", extras["dev"]))


def excluded_from_wheel() -> list[str]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wheel = text[text.index("[tool.hatch.build.targets.wheel]") :]
    return re.findall(r'"(.+?)"', wheel[wheel.index("exclude = [") : wheel.index("\n]")])


def test_a_wheel_has_no_pictures() -> None:
    assert "benchmarks/plots" in excluded_from_wheel()
    assert not [path for path in (ROOT / "src").rglob("*") if path.suffix in (".png", ".svg", ".pdf")]


def test_a_wheel_has_the_suites_of_bench_and_what_they_import() -> None:
    left_out = [ROOT / name for name in excluded_from_wheel()]
    assert all(path.exists() for path in left_out)
    modules = [path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in left_out]
    for suite in SUITES.values():
        assert not [name for name in modules if f"benchmarks.{suite.module}.".startswith(f"{name}.")]
    for path in (ROOT / "benchmarks").rglob("*.py"):
        if not any(path.is_relative_to(other) for other in left_out):
            text = path.read_text(encoding="utf-8")
            assert not [name for name in modules if re.search(rf"\b{re.escape(name)}\b", text)], path


def test_a_wheel_has_no_other_benchmarks() -> None:
    left_out = [ROOT / name for name in excluded_from_wheel()]
    paths = [
        path for path in (ROOT / "benchmarks").rglob("*.py") if path.stem not in ("__init__", "__main__")
    ]
    paths = [path for path in paths if not any(path.is_relative_to(other) for other in left_out)]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    for path in paths:
        name = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        package, _, module = name.rpartition(".")
        called = rf"\b{re.escape(name)}\b|from {re.escape(package)} import [^\n]*\b{module}\b"
        is_suite = any(f"benchmarks.{suite.module}" == name for suite in SUITES.values())
        main = path.parent / "__main__.py"
        others = [text for other, text in texts.items() if other != path]
        others += [main.read_text(encoding="utf-8")] if main.exists() else []
        assert is_suite or any(re.search(called, text) for text in others), name


def test_a_wheel_stays_small() -> None:
    """Compressed, without the few kilobytes that its list of files and the names in the archive take."""
    left_out = [ROOT / name for name in excluded_from_wheel()]
    paths = [*(ROOT / "src" / "scorch").rglob("*"), *(ROOT / "benchmarks").rglob("*")]
    paths = [path for path in paths if path.is_file() and "__pycache__" not in path.parts]
    kept = [path for path in paths if not any(path.is_relative_to(other) for other in left_out)]
    assert sum(len(zlib.compress(path.read_bytes())) for path in kept) < WHEEL_BYTES
