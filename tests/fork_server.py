"""Fresh Python processes without the seconds that ``import torch`` takes.

A test that needs a process of its own calls ``run_python`` as it would call ``subprocess.run``. A server, one
for each process of pytest, has imported torch and Scorch and computed nothing, so it has no threads yet: it
forks, and the fork does what the words say, runs what ``atexit`` holds and ends, without taking the modules
apart. Tests of what importing Scorch does ask for another one, which has imported torch alone
(``has="torch"``). What has to be known before torch is imported (an option of Python, a variable such as
``OMP_NUM_THREADS``) makes a real process of it, and so does a system that cannot fork.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Read by Python, its libraries, torch or Scorch when they are started or imported.
READ_EARLY = ("OMP_", "MKL_", "KMP_", "LD_", "DYLD_", "TORCH", "PYTHON", "SCORCH_DEBUG", "SCORCH_DISABLE")
READ_LATE = ("PYTHONPATH", "PYTHONUTF8")  # the first is followed here, the second changes nothing of ours
CAN_FORK = sys.platform.startswith("linux")
# What a server has imported: what it is named after, and what many of its forks would each load again.
IMPORTED = {
    "torch": ["torch"],
    "scorch": ["torch._dynamo", "scorch", "scipy.sparse.linalg", "matplotlib.pyplot", "pytest", "hypothesis"],
}

_servers: dict[str, subprocess.Popen[str]] = {}


def run_python(
    words: Sequence[str | Path],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: int = 600,
    check: bool = False,
    has: str = "scorch",
) -> subprocess.CompletedProcess[str]:
    """Run ``python WORDS`` and capture what it says.

    The words are ``-c CODE``, ``-m MODULE`` or a script, and arguments; ``-W ACTION`` may stand before them.
    ``has`` says what is imported already.
    """
    words = [str(word) for word in words]
    environment = dict(os.environ if env is None else env)
    if not CAN_FORK or is_option(words) or early(environment) != early(os.environ):
        command = [sys.executable, *words]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=environment, check=check
        )
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder, "stdout"), Path(folder, "stderr")]
        request = {
            "words": words,
            "cwd": str(cwd or Path.cwd()),
            "env": environment,
            "said": [str(path) for path in said],
            "timeout": timeout,
        }
        code = ask(json.dumps(request), has)
        out, err = (path.read_text(encoding="utf-8", errors="replace") for path in said)
    if code == -signal.SIGALRM:
        raise subprocess.TimeoutExpired(words, timeout, out, err)
    done = subprocess.CompletedProcess(words, code, out, err)
    if check:
        done.check_returncode()
    return done


def is_option(words: Sequence[str]) -> bool:
    """Whether Python itself is told something, other than what to do with warnings."""
    first = words[2] if words[0] == "-W" else words[0]
    return first.startswith("-") and first not in ("-c", "-m")


def early(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are read before a fork could be told of them."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_EARLY) and name not in READ_LATE
    }


def ask(request: str, has: str) -> int:
    """The exit status of the fork that did what is asked for."""
    server = _servers.get(has)
    if server is None or server.poll() is not None:
        paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        # Forks begin alone, and none has a screen.
        fixed = {"PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
        server = _servers[has] = subprocess.Popen(
            [sys.executable, __file__, *IMPORTED[has]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **fixed},
        )
        atexit.register(stop, server)
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(request + "\n")
    server.stdin.flush()
    return int(server.stdout.readline())


def stop(server: subprocess.Popen[str]) -> None:
    assert server.stdin is not None and server.stdout is not None
    server.stdin.close()
    server.wait()
    server.stdout.close()


# inside the server -------------------------------------------------------------------------------------


def serve(modules: Sequence[str]) -> dict[str, Any] | None:
    """Fork for each line of the input; returns in the forks, and at the end of the input."""
    for module in modules:
        with contextlib.suppress(ImportError):  # what is optional
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # collections in the forks leave these pages alone, so that they stay shared
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            request: dict[str, Any] = json.loads(line)
            return request
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code, flush=True)
    return None


def become(request: dict[str, Any]) -> None:
    """Look like a process that was started by itself."""
    signal.alarm(request["timeout"])
    for number, path in enumerate(("/dev/null", *request["said"])):
        file = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]


def execute(words: list[str]) -> None:
    """Run code, a module or a script as ``__main__``."""
    if words[0] == "-W":
        warnings.simplefilter(words[1])  # type: ignore[arg-type]
        words = words[2:]
    main = ModuleType("__main__")
    if words[0] == "-m":
        import runpy

        sys.argv = words[1:]
        sys.path.insert(0, os.getcwd())
        sys.modules["__main__"] = main
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    if words[0] == "-c":
        code, name, sys.argv = words[1], "<string>", ["-c", *words[2:]]
        sys.path.insert(0, "")
    else:
        code, name, sys.argv = Path(words[0]).read_text(encoding="utf-8"), words[0], words
        sys.path.insert(0, str(Path(name).resolve().parent))
        main.__file__ = name
    sys.modules["__main__"] = main
    exec(compile(code, name, "exec"), main.__dict__)


def exit_code(words: list[str]) -> int:
    """Do what the words say, and what an interpreter does with what is raised."""
    try:
        execute(words)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def end(code: int) -> None:
    """Wait for threads, run ``atexit``'s functions and leave."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).resolve().parent))
    asked = serve(sys.argv[1:])
    if asked is not None:
        become(asked)
        end(exit_code(asked["words"]))
