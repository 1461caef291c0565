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
from typing import Any

from scorch.errors import ArgumentError

OPTIMIZATIONS = {
    "order": "the cheapest order of loops, instead of the paper's Algorithm 1",
    "contract": "products of many operands two at a time, and partial products kept",
    "registers": "dense inner loops in vector registers",
    "jam": "several rows of a block, or entries of a row, at a time, which share what they load",
    "sums": "sums in several vector accumulators, several entries at once",
    "bitmap": "a bitmap in the workspace, instead of a sorted list of places",
    "slots": "results written once, into slots of the most they may need",
    "places": "places noted and looked up in products of two sparse tensors, instead of a merge",
    "buckets": "entries counted into rows, instead of sorted",
    "balance": "chunks of equal numbers of entries, instead of rows",
    "tiles": "a dense index cut into tiles that stay in the cache",
    "prefetch": "rows fetched ahead of their use",
    "pool": "large results in huge pages and memory that was used before",
    "dense": "operands that are nearly full multiplied as dense ones",
}


@dataclass(frozen=True)
class Settings:
    """The values in force; ``current()`` returns them.

    - ``threads``: how many threads a kernel may use (None: as many as torch).
    - ``cache_directory``: where compiled kernels are kept (None: ``SCORCH_CACHE_DIR`` or the user's cache).
    - ``cache_bytes``: the size that the kernels on disk may reach before old ones are removed.
    - ``compiler_seconds``: how long a compiler may take for one kernel before it is stopped.
    - ``dense_budget``: bytes of dense memory that a result may newly need (None: a quarter of free memory).
    - ``debug``: run every kernel through the bounds-checked interpreter too and compare.
    - ``backend``: where kernels run (None: that of the operands' device); one of ``BACKENDS``.
    - ``without``: the names of ``OPTIMIZATIONS`` that are switched off (``"all"`` for naive loops).
    - ``exchange_budget``: bytes that a call on sharded tensors may move to one process (None: any number).
    - ``deterministic``: whether results on a GPU repeat bit for bit; if not, threads may add to one place.
    """

    threads: int | None = None
    cache_directory: Path | None = None
    cache_bytes: int = 1 << 30
    compiler_seconds: int = 300
    dense_budget: int | None = None
    debug: bool = False
    backend: str | None = None
    without: frozenset[str] = frozenset()
    deterministic: bool = True
    exchange_budget: int | None = None


# The least that numbers may be.
LEAST = {"threads": 1, "cache_bytes": 0, "compiler_seconds": 1, "dense_budget": 0, "exchange_budget": 0}

BACKENDS: dict[str, str] = {}  # name: purpose; filled by ``add_backend``


def add_backend(name: str, purpose: str) -> None:
    """Let ``settings(backend=name)`` choose it."""
    BACKENDS[name] = purpose


def _switched_off(names: Any) -> frozenset[str]:
    """The optimisations that a user names, as one name or several."""
    if isinstance(names, str):
        names = names.replace(",", " ").split()
    if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise ArgumentError(f"without names optimisations, such as 'registers', not {names!r}")
    wanted = set(names)
    if "all" in wanted:
        return frozenset(OPTIMIZATIONS)
    for name in sorted(wanted, key=str):
        if name not in OPTIMIZATIONS:
            known = ", ".join(OPTIMIZATIONS)
            raise ArgumentError(f"unknown optimisation {name!r}; there are {known} and all")
    return frozenset(wanted)


DEFAULT = Settings(
    debug=os.environ.get("SCORCH_DEBUG", "") not in ("", "0"),
    backend=os.environ.get("SCORCH_BACKEND") or None,
    without=_switched_off(os.environ.get("SCORCH_WITHOUT", "")),
)
applied = [DEFAULT]  # for the whole process, where no ``with`` block says otherwise
_current: contextvars.ContextVar[Settings | None] = contextvars.ContextVar("scorch_settings", default=None)
in_block = _current.get  # those of the ``with`` block, or None


def current() -> Settings:
    """The settings in force here."""
    return _current.get() or applied[0]


def enabled(optimization: str) -> bool:
    """Whether an optimisation of ``OPTIMIZATIONS`` is on."""
    assert optimization in OPTIMIZATIONS, optimization
    return optimization not in current().without


class settings:  # noqa: N801 - read as a statement: ``with scorch.settings(threads=1):``
    """Change settings inside a ``with`` block, or for good with ``settings(...).apply()``."""

    def __init__(self, **changes: Any) -> None:
        known = {field.name for field in dataclasses.fields(Settings)}
        for name in changes:
            if name not in known:
                raise ArgumentError(f"unknown setting {name!r}; there are {', '.join(sorted(known))}")
        for name, least in LEAST.items():
            value = changes.get(name)
            needs_one = name in ("cache_bytes", "compiler_seconds")
            if value is None and not needs_one:
                continue
            if name in changes and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                rest = "" if needs_one else " or None"
                raise ArgumentError(f"{name} must be a whole number from {least} on{rest}, not {value!r}")
        place = changes.get("cache_directory")
        if place is not None:
            if not isinstance(place, str | os.PathLike):
                raise ArgumentError(f"cache_directory must be a path or None, not {place!r}")
            changes["cache_directory"] = Path(place)
        for name in ("debug", "deterministic"):
            if not isinstance(changes.get(name, False), bool):
                raise ArgumentError(f"{name} must be True or False, not {changes[name]!r}")
        backend = changes.get("backend")
        if backend is not None and not (isinstance(backend, str) and backend in BACKENDS):
            raise ArgumentError(f"backend must be one of {', '.join(BACKENDS)} or None, not {backend!r}")
        if "without" in changes:
            changes["without"] = _switched_off(changes["without"])
        self._changes = changes
        self._tokens: list[contextvars.Token[Settings | None]] = []

    def apply(self) -> None:
        """Keep these settings, in all threads, until they are changed again."""
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
