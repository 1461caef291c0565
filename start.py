"""Set up Scorch on a fresh machine and run it.

    python3 start.py demo                  install, then show Scorch at work
    python3 start.py test                  install, then run the checks and the tests
    python3 start.py test --long           all cases of all tests, freshly drawn: hours
    python3 start.py test --torch 2.8.0    the tests alone, with another version of torch
    python3 start.py smoke                 some of the tests, with the oldest and the newest torch

Needs Python 3.10 or newer with pip and about 2 GB of disk; everything else goes into .venv beside this
file, with torch 2.13.0, or into .venv-torch-2.8.0 for another version (2.8 to 2.15). --torch stands directly
behind "test". Further arguments are handed on, to the demonstration or to
pytest. Where something is missing, the script says what it is and what to do.

The syntax here stays old enough for an old Python to read, so that it can say that it is too old.
"""

import contextlib
import errno
import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STAMP = VENV / "scorch-start.json"
OLDEST_PYTHON = (3, 10)
# Installed first and alone: a bare "torch" may bring gigabytes of GPU libraries.
TORCH = "torch==2.13.0"
# The oldest and the newest that pyproject.toml allows, and tests that meet most of what differs.
SMOKE_TORCH = ("2.8.0", "2.15.0")
SMOKE_TESTS = (
    "tests/_src/test_torch_internals.py",
    "tests/backends/cpu/test_invoke.py",
    "tests/tensor/test_sparse_tensor.py",
    "tests/tensor/test_saved.py",
    "tests/tensor/test_flatten.py",
    "tests/ops/test_calls.py",
    "tests/ops/test_torch_calls.py",
    "tests/ops/test_errors.py",
    "tests/ops/capture/test_calls.py",
    "tests/learning/test_func.py",
    "tests/nn/test_sparse_linear.py",
)
PROCESSES = ("-n", "2", "--dist", "worksteal")
EXTRAS = {
    "demo": {"scipy", "plots"},
    "test": {"scipy", "test", "lint", "nvrtc"},
    "tests alone": {"scipy", "test"},
}
# What the processes of the command import of torch.
FIRST_IMPORTS = {
    "demo": "import torch",
    "test": "import torch, torch._dynamo",
    "tests alone": "import torch, torch._dynamo",
}
# What a machine can do without, and what it does not do then.
SPARED = {"nvrtc": "tests that compile kernels for GPUs are skipped"}
MODULES = {
    "demo": ["torch", "numpy", "scipy", "scorch"],
    "test": [
        "torch",
        "scipy",
        "scorch",
        "pytest",
        "xdist",
        "hypothesis",
        "ruff",
        "mypy",
        "importlinter",
    ],
    "tests alone": ["torch", "scipy", "scorch", "pytest", "xdist", "hypothesis"],
}


class SetupError(Exception):
    """Something is missing on this machine; the message says what, and what to do."""


# -- What must be there before anything is installed --------------------------------------------------


def check_python(version: tuple, other_pythons: list) -> None:
    if tuple(version[:2]) >= OLDEST_PYTHON:
        return
    message = "Scorch needs Python {}.{} or newer; this is Python {}.{}.\n".format(
        *OLDEST_PYTHON, *version[:2]
    )
    if other_pythons:
        raise SetupError(message + f"This machine also has {other_pythons[0]}: run it instead of python3.")
    raise SetupError(message + "Install a newer Python and run this script with it.")


def newer_pythons() -> list:
    """The interpreters on PATH, by name, that are new enough."""
    names = [f"python3.{minor}" for minor in range(OLDEST_PYTHON[1], OLDEST_PYTHON[1] + 6)]
    return [name for name in names if shutil.which(name)]


def has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def find_compiler() -> str:
    """The first C compiler of this machine that works, or ''."""
    chosen = os.environ.get("SCORCH_CC", os.environ.get("SCORCH_CXX", "")).strip()
    if chosen:
        try:
            works = compiles(shlex.split(chosen))
        except ValueError:  # a quotation that does not end
            works = False
        if not works:
            raise SetupError(
                f"SCORCH_CC is set to {chosen!r}, which is not a working C compiler.\n"
                "Correct it, or unset it to let Scorch find one."
            )
        return chosen
    return next((name for name in ("cc", "gcc", "clang") if shutil.which(name) and compiles([name])), "")


def compiles(command: list) -> bool:
    """Whether the command makes a shared library of a small C file, as Scorch will ask of it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("int probe(int x) { return x + 1; }\n")
        library = Path(folder, "probe.so")
        full = [*command, "-shared", "-fPIC", "-nostdlib", "-o", str(library), str(source)]
        try:
            return subprocess.run(full, capture_output=True, timeout=120).returncode == 0 and library.exists()
        except (OSError, subprocess.TimeoutExpired):
            return False


# -- The virtual environment --------------------------------------------------------------------------


def choose_torch(version: str) -> None:
    """Work in an environment for this version of torch."""
    global VENV, STAMP, TORCH
    if not version or not all(part.isalnum() for part in version.replace("+", ".").split(".")):
        raise SetupError(f"--torch takes a version such as 2.15.0, not {version!r}.")
    VENV = ROOT / f".venv-torch-{version}"
    STAMP = VENV / "scorch-start.json"
    TORCH = f"torch=={version}"


def venv_python() -> str:
    return str(VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))


def child_environment() -> dict:
    """The environment of the programs started here: nothing from outside .venv is imported."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    environment.update(PIP_USER="0", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", PYTHONUTF8="1")
    return environment


def test_environment() -> dict:
    """That of the tests, whose kernels are kept beside what they were made with, if nobody says where."""
    environment = child_environment()
    environment.setdefault("SCORCH_CACHE_DIR", str(VENV / "scorch-cache"))
    # Otherwise every process that the tests start compiles the sources of Scorch anew.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    # Two processes of tests have more threads than there are cores: those that wait should not spin.
    environment.setdefault("OMP_WAIT_POLICY", "passive")
    return environment


def read_stamp() -> dict:
    """What this script has put into .venv so far: {} if unknown."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def probe_environment(modules: list) -> list:
    """Which of the modules .venv lacks, or None where it cannot run pip at all."""
    program = (
        "import importlib.util, json, sys, pip\n"
        f"assert sys.version_info >= {OLDEST_PYTHON}\n"
        f"print(json.dumps([m for m in {modules!r} if importlib.util.find_spec(m) is None]))"
    )
    try:
        done = subprocess.run(
            [venv_python(), "-c", program],
            env=child_environment(),
            cwd=str(VENV),
            capture_output=True,
            text=True,
        )
        return json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, ValueError):
        return None


def make_environment() -> None:
    """Leave a .venv that can run pip: the one that is there if it is healthy, else a new one."""
    if VENV.exists():
        # A virtual environment that was copied or moved still points at its old place.
        here = read_stamp().get("root", str(ROOT)) == str(ROOT)
        if here and probe_environment([]) is not None:
            return
        if not (VENV / "pyvenv.cfg").exists() and any(VENV.iterdir()):
            raise SetupError(f"{VENV} is in the way: it is not a virtual environment. Move it or remove it.")
        say("Removing a virtual environment that does not work")
        shutil.rmtree(str(VENV))
    if not has_module("venv") or not (has_module("ensurepip") or has_module("pip")):
        raise SetupError(
            "This Python cannot make virtual environments: its venv or ensurepip module is missing.\n"
            "On Debian or Ubuntu: sudo apt install python3-venv. Then run this command again."
        )
    with step(f"Making a virtual environment in {VENV.name}"):
        create = [sys.executable, "-m", "venv", str(VENV)]
        if has_module("ensurepip"):
            run_quietly("a virtual environment", create)
        else:
            # Debian without python3-venv: the pip of this Python puts another into the environment.
            run_quietly("a virtual environment", [*create, "--without-pip"])
            run_quietly("pip", [sys.executable, "-m", "pip", "--python", venv_python(), "install", "pip"])
    STAMP.write_text(json.dumps({"root": str(ROOT)}))


def install(command: str) -> None:
    """Bring .venv up to what the command needs; nothing is done when nothing changed.

    The project is installed as editable, so a change to a source file asks for no installation.
    """
    compiler = find_compiler()
    stamp = read_stamp()
    made_of = hashlib.sha256(TORCH.encode() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
    installed = set(stamp.get("extras", [])) if stamp.get("made_of") == made_of else set()
    wanted = EXTRAS[command] | (set() if compiler else {"zig"})
    modules = MODULES[command] + ([] if compiler else ["ziglang"])
    if wanted <= installed and probe_environment(modules) == []:
        return
    extras = EXTRAS[command] | (installed - {"zig"})
    STAMP.write_text(json.dumps({"root": str(ROOT)}))
    with step(f"Installing {TORCH} (a large download the first time; this can take minutes)"):
        pip_install(TORCH, [TORCH])
    with step("Installing Scorch and what it needs for this command"), torch_imported_meanwhile(command):
        install_project(extras)
    if not compiler:
        with step("No C compiler found: installing ziglang, which contains one"):
            install_zig()
        extras = extras | {"zig"}
    STAMP.write_text(json.dumps({"root": str(ROOT), "made_of": made_of, "extras": sorted(extras)}))


@contextlib.contextmanager
def torch_imported_meanwhile(command: str):
    """Import torch beside pip, which uses one core: Python compiles thousands of files at the first import.

    Otherwise each of the processes that start together, with the tests, compiles them for itself.
    """
    environment = child_environment()
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    importing = subprocess.Popen(
        [venv_python(), "-c", FIRST_IMPORTS[command]],
        cwd=str(VENV),
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        importing.wait()


def install_project(extras: set) -> None:
    """Install Scorch with extras, or without those that can be spared where they cannot be had."""
    try:
        pip_install("Scorch", ["--editable", ".[{}]".format(",".join(sorted(extras)))])
    except SetupError:
        spared = sorted(extras & set(SPARED))
        if not spared:
            raise
        pip_install("Scorch", ["--editable", ".[{}]".format(",".join(sorted(extras - set(SPARED))))])
        for extra in spared:
            say(f"    {extra} could not be installed: {SPARED[extra]}")


def install_zig() -> None:
    try:
        pip_install("ziglang", ["--editable", ".[zig]"])
    except SetupError as error:
        raise SetupError(
            "Scorch compiles its kernels with a C compiler. None was found (cc, gcc or clang on PATH), and\n"
            "the ziglang package, which contains one, could not be installed.\n"
            "On Debian or Ubuntu: sudo apt install gcc libc6-dev. On macOS: xcode-select --install.\n"
            "Then run this command again.\n\n" + str(error)
        ) from None


def pip_install(what: str, arguments: list) -> None:
    # Python compiles what is imported when it is; pip would compile everything, which takes longer.
    run_quietly(what, [venv_python(), "-m", "pip", "install", "--quiet", "--no-compile", *arguments])


def run_quietly(what: str, command: list) -> None:
    """Run a step of the installation; its output is shown only when it fails."""
    done = subprocess.run(
        command,
        cwd=str(ROOT),
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode != 0:
        raise SetupError(explain_failure(what, done.stdout))


NO_SPACE = ("No space left on device", "Disk quota exceeded", "Errno 28")
NO_NETWORK = (
    "Temporary failure in name resolution",
    "Name or service not known",
    "nodename nor servname",
    "Failed to establish a new connection",
    "Network is unreachable",
    "Connection refused",
    "Cannot connect to proxy",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "Read timed out",
    "ProtocolError",
    "SSLError",
)
NO_BUILD = ("No matching distribution found", "Could not find a version")


def explain_failure(what: str, output: str) -> str:
    """The plain reason why a step of the installation failed, then the end of its own output."""
    if any(sign in output for sign in NO_SPACE):
        reason = (
            f"The disk is full: {what} could not be installed. Scorch and torch need about 2 GB here and,\n"
            "for a moment, in the folder for temporary files (TMPDIR). Free some space and run this again."
        )
    elif any(sign in output for sign in NO_NETWORK):
        reason = (
            f"{what} could not be downloaded: the package index cannot be reached.\n"
            "Check the network connection (and the proxy, if there is one) and run this again."
        )
    elif "Permission denied" in output:
        reason = f"{what} could not be installed: a folder may not be written to. Is {ROOT} yours?"
    elif any(sign in output for sign in NO_BUILD):
        reason = (
            f"{what} could not be installed: the package index cannot be reached, or it has no version for "
            "Python {}.{} on this machine.\n".format(*sys.version_info[:2])
            + "Check the network connection and run this again, or try another version of Python."
        )
    else:
        reason = f"{what} could not be installed."
    tail = "\n".join("    " + line for line in output.strip().splitlines()[-15:])
    return reason + ("\n\nThe installer said:\n" + tail if tail else "")


# -- The commands -------------------------------------------------------------------------------------


def demo(arguments: list) -> int:
    command = [venv_python(), "-m", "scorch", "demo", *arguments]
    return subprocess.call(command, cwd=str(ROOT), env=child_environment())


def test(arguments: list) -> int:
    """Run every check even when one fails: linters beside pytest, which leaves them parts of the cores."""
    python = venv_python()
    lint_imports = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    checks = [
        ("ruff check", [python, "-m", "ruff", "check", "."]),
        ("ruff format --check", [python, "-m", "ruff", "format", "--check", "."]),
        ("mypy", [python, "-m", "mypy"]),
        ("lint-imports", [python, "-c", lint_imports]),
    ]
    environment = test_environment()
    failed = []

    def lint() -> None:
        for name, command in checks:
            begin = time.monotonic()
            done = subprocess.run(
                command, cwd=str(ROOT), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            passed = done.returncode == 0
            took = "{} ({:.1f} s)".format("passed" if passed else "FAILED", time.monotonic() - begin)
            say(f"{name}: {took}")
            if not passed:
                failed.append((name, done.stdout.decode("utf-8", "replace")))

    heading("checks and pytest")
    linting = threading.Thread(target=lint)
    linting.start()
    pytest = [python, "-m", "pytest", *PROCESSES, *arguments]
    tests_failed = subprocess.call(pytest, cwd=str(ROOT), env=environment) != 0
    linting.join()
    for name, output in failed:
        heading(name)
        say(output)
    words = ", ".join(name for name, _ in failed)
    say("Beside the tests: " + ("failed: " + words if failed else "all checks passed"))
    return 1 if failed or tests_failed else 0


def tests_alone(arguments: list) -> int:
    """Only pytest: linters look at the same files whatever torch is."""
    heading(f"pytest with {TORCH}")
    environment = test_environment()
    pytest = [venv_python(), "-m", "pytest", *PROCESSES, *arguments]
    return 1 if subprocess.call(pytest, cwd=str(ROOT), env=environment) != 0 else 0


def smoke(arguments: list) -> int:
    """Some tests with the oldest and the newest torch, even when one of them fails."""
    failed = []
    for version in SMOKE_TORCH:
        choose_torch(version)
        set_up("tests alone")
        if tests_alone([*SMOKE_TESTS, *arguments]) != 0:
            failed.append(TORCH)
    say("\n" + ("Failed with " + " and ".join(failed) if failed else "Passed with both versions of torch"))
    return 1 if failed else 0


# -- Words --------------------------------------------------------------------------------------------


def say(text: str) -> None:
    print(text, flush=True)


def heading(name: str) -> None:
    say(f"\n== {name} " + "=" * max(0, 76 - len(name)))


@contextlib.contextmanager
def step(text: str):
    say(text + " ...")
    begin = time.monotonic()
    yield
    say(f"    done ({time.monotonic() - begin:.0f} s)")


def set_up(command: str) -> None:
    make_environment()
    install(command)


def run_command(name: str, arguments: list) -> int:
    check_python(sys.version_info, newer_pythons())
    if name == "smoke":
        return smoke(arguments)
    if arguments and arguments[0].startswith("--torch="):
        arguments = ["--torch", arguments[0].partition("=")[2], *arguments[1:]]
    if name == "test" and arguments[:1] == ["--torch"]:
        choose_torch("".join(arguments[1:2]))
        set_up("tests alone")
        return tests_alone(arguments[2:])
    if name == "test" and "--long" in arguments:
        EXTRAS["test"] |= {"zig", "docs"}  # a compiler for other processors, and the site
    set_up(name)
    return {"demo": demo, "test": test}[name](arguments)


def main(arguments: list) -> int:
    if not arguments or arguments[0] not in ("demo", "test", "smoke"):
        say(__doc__.strip())
        return 0 if arguments in (["-h"], ["--help"], ["help"]) else 2
    try:
        return run_command(arguments[0], arguments[1:])
    except SetupError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except OSError as error:
        reason = (
            "The disk is full." if error.errno == errno.ENOSPC else "A file could not be written or read."
        )
        print(f"\n{reason} {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("\nStopped. Run the command again to go on.")
