"""What this machine's CPU can do, as far as generated code depends on it.

Widths are in bytes. ``SCORCH_TARGET`` names another instruction set than this machine's: ``x86-64-v2``,
``x86-64-v3``, ``x86-64-v4`` or ``aarch64``; the compiler gets the same (``backends.cpu.toolchain``).
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from scorch._src.dataclass import dataclass
from scorch.settings import read_environment

LINE = 64  # bytes of a cache line


@dataclass(frozen=True)
class Target:
    """Vector registers, and the caches of one core and of all.

    ``name`` is what compilers call the instruction set, "" for that of the machine itself; ``partial_sums``
    is how many sums take turns, so that one addition need not wait for the last; ``gather_bytes`` is the
    widest register that is filled from addresses which another one lists, 0 if none is. ``gathers_slowly``:
    to load its elements one by one takes less than half as long. ``looks_ahead``: rows of up to so many bytes
    are loaded early enough without being fetched ahead, as the core begins the next entries before one is
    done. ``is_grid``: as many threads run a kernel as its outer loops have turns, with no memory or vector
    registers of their own. ``has_tiles``: one instruction multiplies tiles of bfloat16.
    """

    name: str
    vector_bytes: int
    vector_registers: int
    partial_sums: int
    cache_bytes: int
    shared_cache_bytes: int
    gather_bytes: int = 0
    looks_ahead: int = 0
    is_grid: bool = False
    has_tiles: bool = False
    gathers_slowly: bool = False


GRID = Target("grid", 16, 32, 1, 1 << 17, 32 << 20, is_grid=True)
_chosen: contextvars.ContextVar[Target | None] = contextvars.ContextVar("target", default=None)


@contextmanager
def using_target(other: Target | None) -> Iterator[None]:
    """Plan for a target other than this machine's CPU."""
    token = _chosen.set(other)
    try:
        yield
    finally:
        _chosen.reset(token)


_KNOWN = {
    "x86-64-v2": (16, 16, 4, 0, 0),
    "x86-64-v3": (32, 16, 4, 32, 256),
    "x86-64-v4": (64, 32, 4, 64, 256),
    "aarch64": (16, 32, 2, 0, 0),
}


# Models of Skylake (client, server), Kaby, Cannon, Ice (client, server), Comet, Tiger and Rocket Lake
_LEAKY_GATHERS = {
    "78",
    "94",
    "85",
    "142",
    "158",
    "102",
    "125",
    "126",
    "106",
    "108",
    "165",
    "166",
    "140",
    "141",
    "167",
}


def target() -> Target:
    """What kernels are planned for: the CPU, or what ``using_target`` says."""
    return _chosen.get() or host_target()


@functools.cache
def host_target() -> Target:
    """The instruction set of the CPU."""
    named = read_environment("SCORCH_TARGET").one_of(_KNOWN)
    vector_bytes, registers, sums, gather_bytes, looks_ahead = _KNOWN[named or _native()]
    caches = _cache_bytes(2, 1 << 20), _cache_bytes(3, 8 << 20)
    has_tiles = not named and {"amx_tile", "amx_bf16"} <= _flags()
    return Target(
        named,
        vector_bytes,
        registers,
        sums,
        *caches,
        gather_bytes,
        looks_ahead,
        has_tiles=has_tiles,
        gathers_slowly=not named and gather_bytes > 0 and _has_slow_gathers(_first_core()),
    )


@functools.cache
def processor() -> str:
    """Describe the CPU and its instruction sets: machine code for one may not run on another."""
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part", "CPU variant")
    facts = _first_core()
    descriptions = [platform.machine(), *(f"{name}: {facts[name]}" for name in facts if name in wanted)]
    if not facts:
        descriptions += [platform.processor(), _mac_processor()]
    return "; ".join(description for description in descriptions if description)


def _has_slow_gathers(core: Mapping[str, str]) -> bool:
    """Whether microcode holds gathers back until they cannot leak data (CVE-2022-40982).

    Virtual machines may be told that they are not affected, so the model of the CPU says it.
    """
    kind = core.get("vendor_id"), core.get("cpu family"), core.get("model")
    return kind[:2] == ("GenuineIntel", "6") and kind[2] in _LEAKY_GATHERS


def _native() -> str:
    if platform.machine().lower() in ("aarch64", "arm64"):
        return "aarch64"
    flags = _flags()  # without any: 16 bytes are right everywhere
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= flags:
        return "x86-64-v4"
    return "x86-64-v3" if {"avx2", "fma"} <= flags else "x86-64-v2"


def _flags() -> set[str]:
    return set(_first_core().get("flags", "").split())


def _first_core() -> dict[str, str]:
    """What Linux says of the first core; nothing elsewhere."""
    try:
        with open("/proc/cpuinfo", errors="replace") as lines:  # all of it takes long where cores are many
            facts = [line.partition(":") for line in itertools.takewhile(str.strip, lines)]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in facts}


def _mac_processor() -> str:
    try:
        said = subprocess.check_output(["sysctl", "-n", "machdep.cpu.brand_string"], text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.strip()


def _cache_bytes(level: int, usual: int) -> int:
    """The size of a cache of the first core; where it is not known, the usual one."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu0/cache/index{level}/size").read_text().strip()
        return int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}[text[-1]]
    except (OSError, ValueError, KeyError, IndexError):
        return usual
