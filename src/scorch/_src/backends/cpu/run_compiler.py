"""Run a compiler in a folder of its own, and end it with all it has started where it takes too long."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from pathlib import Path

from scorch._src.backends import cache
from scorch._src.backends.private_files import make_private
from scorch.settings import current

MAX_OUTPUT_BYTES = 1 << 20  # of what a compiler says


def run_compiler(command: list[str], folder: str, seconds: float | None = None) -> tuple[int, str]:
    """Run a compiler inside ``folder``; return its exit status and output.

    ``subprocess.TimeoutExpired`` is raised after so many seconds (``settings(compiler_seconds=...)``); what
    the compiler has started ends with it.
    """
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": folder}  # what it writes beside is as private
    if is_zig(command):  # it wants caches of its own, which go where ``cache.clear`` finds them
        environment.setdefault("ZIG_LOCAL_CACHE_DIR", os.path.join(folder, "zig"))
        environment.setdefault("ZIG_GLOBAL_CACHE_DIR", _zig_directory(folder))
    # A file, not a pipe, which a process left behind could hold open for ever.
    with open(os.path.join(folder, "output"), "w+b") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = _wait(process, current().compiler_seconds if seconds is None else seconds)
        except BaseException:
            _end(process)
            raise
        output.seek(0)
        return status, output.read(MAX_OUTPUT_BYTES).decode(errors="replace").strip()


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Wait for a process to end, and hear of it at once: ``Popen.wait`` looks after pauses of up to 50 ms."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # no Linux, or an old one
        return process.wait(seconds)
    try:
        has_ended, _, _ = select.select([descriptor], [], [], seconds)
    except ValueError:  # more files are open than select can name
        return process.wait(seconds)
    finally:
        os.close(descriptor)
    if not has_ended:
        raise subprocess.TimeoutExpired(process.args, seconds)
    return process.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and those it has started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def is_zig(command: list[str]) -> bool:
    """Check whether a command runs the compiler of the package ziglang."""
    return any(Path(word).name in ("zig", "ziglang") for word in command)


def _zig_directory(folder: str) -> str:
    place = cache.directory() / "zig"
    try:
        make_private(place)
    except OSError:
        return os.path.join(folder, "zig")
    return str(place)
