"""Build the package and the site of a release, as the workflows do.

    python -m tools.release package [--tag v0.1.0]       sdist and wheel in dist/, tried in a new environment
    python -m tools.release site --version v0.1.0 DIR    the site of one version, in DIR beside the others

``package`` refuses a tag that is not the version in pyproject.toml, or that CHANGELOG.md does not name.
``site`` writes DIR/dev for a branch, or DIR/0.1 and DIR/stable for a tag, and lists all versions in
DIR/switcher.json. ``SCORCH_SITE_ROOT`` is the path that DIR is published under, such as ``/scorch/``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import scorch, torch
A = scorch.rand(100, 100, density=0.1, format="csr")
assert torch.allclose(A @ torch.ones(100), A.to_dense() @ torch.ones(100), atol=1e-5)
"""
NOT_FOUND = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Page not found - Scorch</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font-family: system-ui, sans-serif; max-width: 36em; margin: 20vh auto; padding: 0 1em; }}
</style>
<h1>Page not found</h1>
<p>This page does not exist, or not in this version. Try the <a href="{home}">first page</a> or
<a href="{home}search.html">search</a>.</p>
"""
TAG = re.compile(r"v(\d+)\.(\d+)\.(\d+)((?:a|b|rc)\d+)?")


class ReleaseError(Exception):
    """A release that must not be made; the message says why."""


def read_version() -> str:
    """Return the version in pyproject.toml."""
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert found is not None
    return found[1]


def check_tag(tag: str) -> None:
    """Refuse a tag that is not the version of this tree, or that the changelog does not name."""
    version = read_version()
    if tag != f"v{version}":
        raise ReleaseError(f"the tag is {tag}, but pyproject.toml has version {version}: change one of them")
    if f"\n## [{version}]" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        raise ReleaseError(f"CHANGELOG.md has no section [{version}]: rename [Unreleased] to it")


def make_environment(folder: Path, *packages: str) -> str:
    """Install packages in a new virtual environment and return its Python."""
    venv.create(folder, with_pip=True)
    python = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    run(python, "-m", "pip", "install", "--quiet", *packages)
    return python


def run(*command: str, **environment: str) -> None:
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **environment})


def build_package(tag: str | None) -> None:
    """Build sdist and wheel, check both, and try the wheel where nothing else is installed."""
    if tag is not None:
        check_tag(tag)
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        python = make_environment(Path(folder, "build"), "build", "twine")
        run(python, "-m", "build", "--outdir", "dist", ".")  # the wheel is built from the sdist
        built = sorted(str(path) for path in (ROOT / "dist").iterdir())
        run(python, "-m", "twine", "check", "--strict", *built)
        [wheel] = [path for path in built if path.endswith(".whl")]
        user = make_environment(Path(folder, "user"), wheel)
        subprocess.run([user, "-I", "-c", PROGRAM], check=True, cwd=folder)
    for path in built:
        print(f"{Path(path).name}  {Path(path).stat().st_size:,} bytes")


# -- The site -------------------------------------------------------------------------------------------


def folders_of(version: str) -> list[str]:
    """Return the folders of the site that a branch or a tag is built into."""
    found = TAG.fullmatch(version)
    if found is None:
        return ["dev"]
    minor = f"{found[1]}.{found[2]}"
    return [minor] if found[4] else [minor, "stable"]


def site_root() -> str:
    """Return the path that the site is published under: ``/``, or that of a project's pages."""
    return os.environ.get("SCORCH_SITE_ROOT", "/")


def list_versions(site: Path) -> list[dict[str, object]]:
    """Return what the version switcher shows: releases, the newest first, then the development version.

    Addresses begin at the root, since browsers resolve them from pages at any depth.
    """
    minors = [path.name for path in site.iterdir() if re.fullmatch(r"\d+\.\d+", path.name)]
    minors.sort(key=lambda name: [int(number) for number in name.split(".")], reverse=True)
    listed: list[dict[str, object]] = [{"version": name, "url": f"{site_root()}{name}/"} for name in minors]
    if listed:
        listed[0] |= {"name": f"{minors[0]} (stable)", "preferred": True}
    if (site / "dev").is_dir():
        listed.append({"version": "dev", "url": f"{site_root()}dev/"})
    return listed


def build_site(version: str, site: Path, options: list[str]) -> None:
    """Build the site of this tree into its folders of ``site`` and list all versions there."""
    first, *others = folders_of(version)
    shutil.rmtree(site / first, ignore_errors=True)
    run(
        sys.executable, "-m", "sphinx", "-W", *options, "docs", str(site.resolve() / first),
        SCORCH_DOCS_VERSION=first,
    )  # fmt: skip
    for other in others:
        shutil.rmtree(site / other, ignore_errors=True)
        shutil.copytree(site / first, site / other)
    (site / "switcher.json").write_text(json.dumps(list_versions(site), indent=2) + "\n")
    landing = "stable" if (site / "stable").is_dir() else first
    (site / "index.html").write_text(f'<meta http-equiv="refresh" content="0; url={landing}/">\n')
    (site / "404.html").write_text(NOT_FOUND.format(home=f"{site_root()}{landing}/"))
    (site / ".nojekyll").touch()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.release",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    package = commands.add_parser("package", help="build sdist and wheel in dist/")
    package.add_argument("--tag", help="the tag that is released, such as v0.1.0")
    site = commands.add_parser("site", help="build the site of one version")
    site.add_argument("folder", metavar="DIR", type=Path, help="where the sites of all versions are")
    site.add_argument("--version", required=True, help="the tag or the branch that is built")
    site.add_argument("--no-examples", action="store_true", help="leave the gallery's examples out")
    options = parser.parse_args(arguments)
    try:
        if options.command == "package":
            build_package(options.tag)
        else:
            options.folder.mkdir(parents=True, exist_ok=True)
            build_site(
                options.version, options.folder, ["-D", "plot_gallery=0"] if options.no_examples else []
            )
    except ReleaseError as error:
        print(f"No release: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"No release: {error.cmd[0]} {error.cmd[1:4]} ended with {error.returncode}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
