"""What a user may adjust, for the whole process or inside a ``with`` block.

>>> import scorch
>>> with scorch.settings(threads=1):
...     pass
"""

from __future__ import annotations

import contextvars
import dataclasses
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from scorch.errors import ArgumentError, is_integer, nearest, warn_deprecated

OPTIMIZATIONS = {
    "order": "the cheapest loop order, instead of the paper's Algorithm 1",
    "contract": "contractions of many operands in pairs, and reuse of partial products",
    "registers": "dense inner loops in vector registers",
    "jam": "several rows of a block, or nonzeros of a row, at a time, which share loads",
    "sums": "sums in several vector accumulators, several nonzeros at once",
    "bitmap": "a bitmap in the workspace, instead of a sorted list of coordinates",
    "slots": "results written directly into arrays of their maximum size",
    "lookup": "coordinates looked up in products of two sparse tensors, instead of a merge",
    "repeat": "sparsity patterns of products that are computed again, instead of finding them anew",
    "blocks": "rows of two sparse matrices added several nonzeros at a time (AVX-512)",
    "buckets": "nonzeros counted into rows, instead of sorted",
    "balance": "chunks with equal numbers of nonzeros, instead of rows",
    "tiles": "a dense index split into tiles that stay in the cache",
    "prefetch": "prefetching of rows",
    "pool": "large results in huge pages and reused memory",
    "dense": "nearly full operands multiplied as dense ones",
    "ahead": "common GPU kernels compiled in the background, before a call needs them",
}


@dataclass(frozen=True)
class Settings:
    """The current settings, as ``current()`` returns them.

    - ``threads``: the maximum number of threads of a kernel (None: as many as PyTorch uses).
    - ``cache_directory``: the disk cache of kernels (None: ``SCORCH_CACHE_DIR`` or the user's cache folder).
    - ``cache_bytes``: the maximum size of the disk cache; the oldest kernels are removed.
    - ``compiler_seconds``: the time limit for compiling one kernel.
    - ``dense_budget``: the maximum bytes of a new dense tensor (None: a quarter of its device's free memory).
    - ``debug``: whether to run every kernel in the bounds-checked interpreter, too, and compare the results.
    - ``backend``: what runs kernels, one of ``BACKENDS`` (None: that of the operands' device).
    - ``disable``: the names of ``OPTIMIZATIONS`` to disable (``"all"`` for naive loops).
    - ``exchange_budget``: the bytes that a call on sharded tensors may send to one rank (None: no limit).
    - ``deterministic``: whether results on a GPU are bitwise reproducible; otherwise, they use atomic adds.
    """

    threads: int | None = None
    cache_directory: Path | None = None
    cache_bytes: int = 1 << 30
    compiler_seconds: int = 300
    dense_budget: int | None = None
    debug: bool = False
    backend: str | None = None
    disable: frozenset[str] = frozenset()
    deterministic: bool = True
    exchange_budget: int | None = None


# The least that numbers may be.
LEAST = {"threads": 1, "cache_bytes": 0, "compiler_seconds": 1, "dense_budget": 0, "exchange_budget": 0}
BYTES = ("cache_bytes", "dense_budget", "exchange_budget")

BACKENDS: dict[str, str] = {}  # name: purpose; filled by ``add_backend``


def add_backend(name: str, purpose: str) -> None:
    """Let ``settings(backend=name)`` choose it."""
    BACKENDS[name] = purpose


class Variable(NamedTuple):
    """An environment variable, under the name that the user set, and its value; empty if it is not set."""

    name: str
    value: str

    def one_of(self, choices: Collection[str]) -> str:
        """Return the value; raise unless it is one of the choices, or empty."""
        if self.value and self.value not in choices:
            raise ArgumentError(
                f"the environment variable {self.name} must be one of {', '.join(choices)}, "
                f"but got {self.value!r}"
            )
        return self.value


FORMER_NAMES = {"SCORCH_CC": "SCORCH_CXX", "SCORCH_DISABLE": "SCORCH_WITHOUT"}


def read_environment(name: str) -> Variable:
    """Return an environment variable of Scorch, or the one that had its meaning before."""
    old = FORMER_NAMES.get(name)
    if old is not None and name not in os.environ and old in os.environ:
        warn_deprecated(f"the environment variable {old}", name)
        name = old
    return Variable(name, os.environ.get(name, "").strip())


def _as_optimizations(names: Any, source: str = "disable") -> frozenset[str]:
    """Return the optimizations that a user names, as one name or several."""
    if isinstance(names, str):
        names = names.replace(",", " ").split()
    if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise ArgumentError(f"{source} must name optimizations, such as 'registers', but got {names!r}")
    wanted = set(names)
    for name in sorted(wanted - {"all"}):
        if name not in OPTIMIZATIONS:
            choices = f"choose from {', '.join(OPTIMIZATIONS)} and all"
            hint = nearest(name, [*OPTIMIZATIONS, "all"]) or choices
            raise ArgumentError(f"{source} names the unknown optimization {name!r}; {hint}")
    return frozenset(OPTIMIZATIONS if "all" in wanted else wanted)


def as_folder(place: Any, source: str = "cache_directory") -> Path:
    """Return the folder that a user names, whose ``~`` is a home directory."""
    if not isinstance(place, str | os.PathLike) or not isinstance(os.fspath(place), str):
        raise ArgumentError(f"{source} must be a path, but got {place!r}")
    if not os.fspath(place) or "\0" in os.fspath(place):
        raise ArgumentError(f"{source} must be the path of a folder, but got {place!r}")
    try:
        return Path(place).expanduser()
    except RuntimeError as error:
        message = f"{source} is {os.fspath(place)!r}, but this home directory does not exist"
        raise ArgumentError(message) from error


def _from_environment() -> Settings:
    """Return the settings that environment variables change.

    The backend is looked up when kernels run, since others may be registered until then.
    """
    disable = read_environment("SCORCH_DISABLE")
    return Settings(
        debug=read_environment("SCORCH_DEBUG").one_of(("0", "1")) == "1",
        backend=read_environment("SCORCH_BACKEND").value or None,
        disable=_as_optimizations(disable.value, f"the environment variable {disable.name}"),
    )


DEFAULT = _from_environment()
applied = [DEFAULT]  # for the whole process, where no ``with`` block says otherwise
_current: contextvars.ContextVar[Settings | None] = contextvars.ContextVar("scorch_settings", default=None)
in_block = _current.get  # those of the ``with`` block, or None


def current() -> Settings:
    """The settings in force here."""
    return _current.get() or applied[0]


def enabled(optimization: str) -> bool:
    """Whether an optimization of ``OPTIMIZATIONS`` is on."""
    assert optimization in OPTIMIZATIONS, optimization
    return optimization not in current().disable


class _OnlyCalled(type):
    """The class of ``settings``, whose attributes change nothing."""

    def __setattr__(cls, name: str, value: Any) -> None:
        if name in {field.name for field in dataclasses.fields(Settings)}:
            call = f"scorch.settings({name}={value!r})"
            raise ArgumentError(
                f"{name} is set by a call: with {call}: ..., or {call}.apply() for the whole process"
            )
        super().__setattr__(name, value)


class settings(metaclass=_OnlyCalled):  # noqa: N801 - read as a statement: ``with scorch.settings(threads=1):``
    """Change settings inside a ``with`` block, or for the whole process with ``settings(...).apply()``.

    Args:
        changes: settings by name; see ``Settings`` for all of them.

    Raises:
        ArgumentError: a setting is unknown or its value is not allowed.

    Example:

        >>> import scorch
        >>> with scorch.settings(threads=1):
        ...     pass
    """

    def __init__(self, **changes: Any) -> None:
        if "without" in changes:
            warn_deprecated("settings(without=)", "settings(disable=)")
            changes.setdefault("disable", changes.pop("without"))
        known = {field.name for field in dataclasses.fields(Settings)}
        for name in changes:
            if name not in known:
                choices = f"choose from {', '.join(sorted(known))}"
                raise ArgumentError(f"unknown setting {name!r}; {nearest(name, known) or choices}")
        for name, least in LEAST.items():
            value = changes.get(name)
            needs_one = name in ("cache_bytes", "compiler_seconds")
            if value is None and not needs_one:
                continue
            if name in changes and not is_integer(value, least):
                rest = "" if needs_one else " or None"
                kind = "a positive integer" if least else "a non-negative integer"
                unit = "; it counts bytes" if name in BYTES else ""
                raise ArgumentError(f"{name} must be {kind}{rest}, but got {value!r}{unit}")
        if changes.get("cache_directory") is not None:
            changes["cache_directory"] = as_folder(changes["cache_directory"])
        for name in ("debug", "deterministic"):
            if not isinstance(changes.get(name, False), bool):
                raise ArgumentError(f"{name} must be True or False, but got {changes[name]!r}")
        backend = changes.get("backend")
        if backend is not None and not (isinstance(backend, str) and backend in BACKENDS):
            raise ArgumentError(
                f"backend must be one of {', '.join(BACKENDS)} or None, but got {backend!r}; with None, "
                "kernels run on the device of their operands"
            )
        if "disable" in changes:
            changes["disable"] = _as_optimizations(changes["disable"])
        self._changes = changes
        self._tokens: list[contextvars.Token[Settings | None]] = []

    def __repr__(self) -> str:
        changes = {name: value for name, value in self._changes.items() if name != "disable"}
        if "disable" in self._changes:
            changes["disable"] = sorted(self._changes["disable"])
        return f"settings({', '.join(f'{name}={value!r}' for name, value in changes.items())})"

    def apply(self) -> None:
        """Apply these settings to all threads, until they are changed again."""
        applied[0] = dataclasses.replace(applied[0], **self._changes)
        here = _current.get()
        if here is not None:  # inside a ``with`` block, whose own changes end with it
            _current.set(dataclasses.replace(here, **self._changes))

    def __enter__(self) -> Settings:
        inside = dataclasses.replace(current(), **self._changes)
        self._tokens.append(_current.set(inside))
        return inside

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.reset(self._tokens.pop())
