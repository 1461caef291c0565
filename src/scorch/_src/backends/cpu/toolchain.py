"""The C compiler of this machine and its flags.

Kernels are plain C without headers or libraries, so nearly any compiler will do: the one named by
``SCORCH_CC``, else clang or gcc, else the ``ziglang`` wheel. A candidate counts only if it has just
compiled a small library with the very flags kernels get, which another process could load and call; what the
others said is saved for the error message. The result is noted next to the kernels, so that a process whose
kernels are all on disk starts no compiler; the note holds while the candidates are the same files. A compiler
that fails at a kernel is passed over for the next one (``jit``), and none may run for ever. Flags never
include ``-ffast-math``: results must not depend on the compiler's licence.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import torch

from scorch._src.backends import cache
from scorch._src.backends.cpu.run_compiler import is_zig, run_compiler
from scorch._src.backends.private_files import temporary_folder
from scorch._src.compiler.target import processor, target
from scorch._src.dataclass import dataclass
from scorch.errors import CompilerNotFoundError
from scorch.settings import read_environment

_PROBE = """\
void *malloc(unsigned long);
void free(void *);
double exp(double);
long long probe(long long *args) {
    long long *copy = malloc(8), found;
    *copy = (long long)exp((double)args[0]);
    found = *copy + __atomic_fetch_add(&args[1], 1, __ATOMIC_ACQ_REL);
    free(copy);
    return found;
}
"""
_LOAD = """\
import ctypes, sys
args = (ctypes.c_longlong * 2)(0, 41)
probe = ctypes.CDLL(sys.argv[1]).probe
probe.restype, probe.argtypes = ctypes.c_longlong, [ctypes.c_void_p]
assert (probe(args), args[1]) == (42, 42), "the library computes something else"
"""
_PROBE_SECONDS = 120
_KINDS = ("gcc", "clang", "zig")

_lock = threading.Lock()
_toolchain: Toolchain | None = None
_missing: tuple[list[str], str] | None = None  # what the search depends on, and why it failed
_stuck: set[tuple[str, ...]] = set()  # commands that ran out of time in this process
_others: dict[tuple[str, ...], Toolchain | str] = {}  # further candidates that were tried


@dataclass(frozen=True)
class Toolchain:
    """A compiler that works, and how to call it."""

    command: tuple[str, ...]
    kind: str  # "gcc", "clang" or "zig"
    version: str
    flags: tuple[str, ...]

    @property
    def identity(self) -> tuple[str, ...]:
        """What machine code depends on besides the source; not where the compiler is installed."""
        return (self.kind, self.version, *self.command[1:], *self.flags, processor())

    def compile_command(self, source: str, library: str) -> list[str]:
        """Return the command that compiles the C file ``source`` to the shared library ``library``."""
        return [*self.command, *self.flags, "-o", library, source]


def find_toolchain() -> Toolchain:
    """Return the compiler to use, searched at the first call of the process.

    A search without result is repeated once the candidates are other files, as after a compiler is installed.
    """
    global _toolchain
    if _toolchain is None:
        with _lock:
            if _toolchain is None:
                _toolchain = _search()
    return _toolchain


def has_compiler() -> bool:
    """Check whether some compiler works; raise if ``SCORCH_CC`` names one that does not."""
    try:
        find_toolchain()
    except CompilerNotFoundError:
        if _named():
            raise
        return False
    return True


def toolchains() -> Iterator[Toolchain]:
    """Yield the compiler to use, and then every other one that works, tried out when it is needed."""
    first = find_toolchain()
    seen = {_program(first.command)}
    if first.command not in _stuck:
        yield first
    for _, command in _candidates():
        if not command or _program(tuple(command)) in seen or tuple(command) in _stuck:
            continue
        seen.add(_program(tuple(command)))
        outcome = _others.get(tuple(command))
        if outcome is None:
            outcome = _others[tuple(command)] = _probe(command)
        if isinstance(outcome, Toolchain):
            yield outcome


def skip_compiler(tools: Toolchain) -> None:
    """Skip a compiler that ran out of time for the rest of this process."""
    _stuck.add(tools.command)


def reset_search() -> None:
    """Repeat the search for compilers at the next call, without those that ran out of time."""
    global _toolchain, _missing
    with _lock:
        _toolchain = _missing = None
        _others.clear()


def forget() -> None:
    """Repeat the search for compilers as a new process does."""
    reset_search()
    _stuck.clear()


def describe() -> dict[str, str]:
    """Describe this machine for a bug report, for ``python -m scorch env``."""
    try:
        tools = find_toolchain()
        report = {
            "compiler": shlex.join(tools.command),
            "compiler kind": tools.kind,
            "compiler version": tools.version,
            "compiler flags": shlex.join(tools.flags),
        }
    except CompilerNotFoundError as error:
        report = {"compiler": f"none: {error}"}
    stored = cache.statistics()
    return {
        **report,
        "cpu": processor(),
        "cache directory": str(stored.directory),
        "cache entries": f"{stored.entries:,}",
        "cache bytes": f"{stored.bytes:,}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "threads": str(torch.get_num_threads()),
    }


def _search() -> Toolchain:
    """Return the first candidate that works: as noted by another process, else tried out here."""
    global _missing
    descriptor = _descriptor()
    if _missing is not None and _missing[0] == descriptor:
        raise CompilerNotFoundError(_missing[1])
    key = cache.make_key("toolchain", *descriptor)
    note = cache.read_note(key)
    known = None if note is None else _from_note(note)
    if known is not None:
        return known
    try:
        toolchain = _try_candidates()
    except CompilerNotFoundError as error:
        _missing = descriptor, str(error)
        raise
    cache.write_note(key, json.dumps(dataclasses.asdict(toolchain)).encode())
    return toolchain


def _from_note(note: bytes) -> Toolchain | None:
    """Read a note, if it names a candidate with flags of ours: nothing else is ever run."""
    try:
        known = json.loads(note)
        command, kind, version, flags = (known[name] for name in ("command", "kind", "version", "flags"))
        commands = [_named_command()] if _named() else [command for _, command in _candidates()]
        is_ours = command in commands and kind in _KINDS and isinstance(version, str)
        if is_ours and command and tuple(flags) in _flag_sets(kind):
            return Toolchain(tuple(command), kind, version, tuple(flags))
    except (ValueError, KeyError, TypeError, OSError, RecursionError):
        pass
    return None


def _named() -> str:
    """Return the command in ``SCORCH_CC``, which the user may set."""
    return read_environment("SCORCH_CC").value


def _named_command() -> list[str]:
    """Split the command in ``SCORCH_CC``; its path is absolute, since compilers run in another directory."""
    program, *options = shlex.split(_named())
    path = shutil.which(program)
    if path is None:
        raise FileNotFoundError(f"program {program!r} not found")
    return [os.path.abspath(path), *options]


def _program(command: tuple[str, ...]) -> tuple[str, ...]:
    """Identify a command by the file it runs, which may have several names."""
    return os.path.realpath(command[0]), *command[1:]


def _descriptor() -> list[str]:
    """Return what the search depends on: the candidates as files, their flags, the CPU."""
    named = _named()
    descriptor = [named, processor(), _PROBE, _LOAD, *(repr(_flag_sets(kind)) for kind in _KINDS)]
    if named:
        try:
            commands = [shlex.split(named)]
        except ValueError:
            commands = []
    else:
        commands = [command for _, command in _candidates()]
    for command in commands:
        program = shutil.which(command[0]) if command else None
        descriptor.append(f"{command} {program}")
        with contextlib.suppress(OSError):
            status = os.stat(program or "")
            descriptor.append(f"{status.st_size} {status.st_mtime_ns}")
    return descriptor


def _try_candidates() -> Toolchain:
    variable = read_environment("SCORCH_CC")
    if variable.value:
        try:
            outcome = _probe(_named_command())
        except (ValueError, OSError) as error:  # a quotation that does not end, or no such program
            outcome = str(error)
        if isinstance(outcome, Toolchain):
            return outcome
        raise CompilerNotFoundError(
            f"{variable.name} is set to {variable.value!r}, which could not compile a small C library: "
            f"{outcome}. Fix it, or unset it to let Scorch look for clang, gcc and the ziglang package."
        )
    failures = []
    for name, command in _candidates():
        outcome = _probe(command) if command else "not found"
        if isinstance(outcome, Toolchain):
            return outcome
        failures.append(f"  {name}: {outcome}")
    raise CompilerNotFoundError(
        "Scorch needs a C compiler, but found none that works on this machine. It tried\n"
        + "\n".join(failures)
        + "\nTo install one: `apt install gcc` (or your system's equivalent), or `pip install ziglang`, "
        "which needs no administrator rights; or set SCORCH_CC to the command of a C compiler."
    )


def _candidates() -> list[tuple[str, list[str]]]:
    """List the candidates in order: a name for people and a command, empty where it is not installed."""
    on_path = [(name, shutil.which(name)) for name in ("clang", "gcc", "cc")]
    return [
        *((f"{name} on PATH", [os.path.abspath(path)] if path else []) for name, path in on_path),
        ("the Python package ziglang", _zig_command()),
    ]


def _zig_command() -> list[str]:
    """Return the compiler inside the package ziglang, whose start-up script costs 20 ms for each kernel."""
    package = importlib.util.find_spec("ziglang")
    if package is None:
        return []
    for folder in package.submodule_search_locations or ():
        program = os.path.join(folder, "zig")
        if os.access(program, os.X_OK):
            return [program, "cc"]
    return [sys.executable, "-m", "ziglang", "cc"] if sys.executable else []


def _probe(command: list[str]) -> Toolchain | str:
    """Try out a command; return its toolchain, or why it is of no use."""
    try:
        with temporary_folder() as folder:
            status, said = run_compiler([*command, "--version"], folder, _PROBE_SECONDS)
            if status:
                return f"`{shlex.join(command)} --version` failed: {_shorten(said)}"
            version = said.partition("\n")[0]
            kind = "zig" if is_zig(command) else "clang" if "clang" in said else "gcc"
            Path(folder, "probe.c").write_text(_PROBE)
            for flags in _flag_sets(kind):
                candidate = Toolchain(tuple(command), kind, version, flags)
                words = candidate.compile_command("probe.c", "probe.so")
                status, said = run_compiler(words, folder, _PROBE_SECONDS)
                if status:
                    reason = f"`{shlex.join(words)}` failed: {_shorten(said)}"
                    continue
                reason = _load_probe(folder)
                if not reason:
                    return candidate
    except OSError as error:
        return str(error)
    except subprocess.TimeoutExpired as error:
        return f"`{shlex.join(error.cmd)}` did not finish within {_PROBE_SECONDS} seconds"
    return reason


def _load_probe(folder: str) -> str:
    """Load and call the probe in another process; return why that failed, or ""."""
    library = Path(folder, "probe.so")
    if not library.is_file():
        return "it produced no library and no output"
    python = Path(sys.executable or "")
    if not python.name.startswith(("python", "pypy")):  # inside another program: nobody to ask
        return ""
    status, said = run_compiler([str(python), "-I", "-S", "-c", _LOAD, str(library)], folder, _PROBE_SECONDS)
    if status == 0:
        library.unlink()
        return ""
    last = said.splitlines()[-1] if said else f"signal {-status}" if status < 0 else f"status {status}"
    return f"its output cannot be loaded and called: {last}"


def _flag_sets(kind: str) -> list[tuple[str, ...]]:
    """Return the flags to try, best first: compilers differ in those that select this very CPU."""
    base = ["-x", "c", f"-O{_effort()}", "-fPIC", "-shared", "-fwrapv", "-fopenmp-simd", "-std=gnu11", "-w"]
    base += ["-fno-math-errno", "-fno-trapping-math"]  # square roots and branches in vectors; same numbers
    if target().gathers_slowly:
        base += ["-DGATHERS_SLOWLY"]
    if sys.platform == "darwin":  # which insists on linking its libSystem
        base += ["-undefined", "dynamic_lookup"]
    else:  # malloc, exp and the like are found in the process when the kernel is loaded
        base += ["-nostdlib"]
    if kind == "gcc":
        base += ["-fno-loop-unroll-and-jam"]  # which costs a factor of 3 in products with dense
        base += ["-fno-tree-loop-distribute-patterns"]  # calls of memcpy for the few entries a row has left
    tuned: list[tuple[str, ...]] = [("-march=native",), ()]
    if platform.machine() in ("aarch64", "arm64"):
        inline = "-mno-outline-atomics"  # outlined ones are calls into libgcc, which kernels do without
        tuned = [("-mcpu=native", inline), ("-mcpu=native",), ("-march=native",), (inline,), ()]
    named = target().name
    if named.startswith("x86"):
        tuned = [(f"-mcpu={named.replace('-', '_')}",)] if kind == "zig" else [(f"-march={named}",)]
    elif named:
        tuned = [options for options in tuned if not any("native" in option for option in options)]
    last = (*(flag for flag in base if flag != "-nostdlib"), *tuned[-1])  # calls functions of its own library
    return [*((*base, *options) for options in tuned), last]


def _effort() -> str:
    """Return the optimization level of ``SCORCH_OPTIMIZE``: a low one takes half the time."""
    return read_environment("SCORCH_OPTIMIZE").one_of(("0", "1", "2", "3")) or "3"


def _shorten(text: str, lines: int = 6) -> str:
    shown = text.splitlines()[:lines]
    return "\n    ".join(shown) if shown else "it said nothing"
