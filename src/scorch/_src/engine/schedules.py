"""Finished schedules, so that a step is planned once: by structure class in memory, by its facts on disk.

Planning a step takes some milliseconds of Python, as long as finding its library on disk several times over.
Tensors of one *class* share a schedule within a process: the same formats and dtypes, the same dense extents,
and sizes and numbers of entries of the same magnitude; so batches that differ a little are planned once. On
disk a schedule is kept by the exact numbers it was made for and by the sources of Scorch itself, so that what
a program does never depends on what another one did before. What is read there is only ever data (``notes``),
and what is damaged counts as absent.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from scorch._src.backends import cache
from scorch._src.backends.base import Backend, Schedule
from scorch._src.bounded import BoundedCache
from scorch._src.compiler.pipeline import plan_step, result_format
from scorch._src.compiler.plan import Operand, Step
from scorch._src.compiler.schedule.contract import contract
from scorch._src.compiler.target import target
from scorch._src.compiler.typing import default_float, result_type
from scorch._src.engine import notes
from scorch._src.formats import Format
from scorch._src.loops.types import Type
from scorch._src.notation.nodes import Access
from scorch.settings import current

MOST_SCHEDULES = 4096
MOST_BITS = 62  # of all sizes together: beyond, keys and index types may depend on the very sizes
MOST_SIZE_BITS = 30

_schedules: BoundedCache[Hashable, Schedule] = BoundedCache(MOST_SCHEDULES, "schedules")
_contractions: BoundedCache[Hashable, tuple[Step, ...]] = BoundedCache(
    MOST_SCHEDULES, "contraction schedules"
)

Found = TypeVar("Found")
notes.register(Schedule)


@dataclass(frozen=True)
class Problem:
    """A step over given operands: all that a schedule depends on, besides settings."""

    step: Step
    operands: Mapping[str, Operand]
    sizes: Mapping[str, int]
    requested: Format | None = None
    skip_zeros: bool = False
    unsorted: bool = False

    @functools.cached_property
    def element(self) -> Type:
        """The dtype of the result."""
        return result_type(self.step, {name: operand.element for name, operand in self.operands.items()})


def find_schedule(problem: Problem, backend: Backend) -> Schedule:
    """The schedule of a step: of its class in this process, else from disk, else made now."""
    name = backend.name, class_of(problem)
    found = _schedules.get(name)
    if found is None:
        make = functools.partial(new_schedule, backend=backend)
        what = f"schedule for {backend.name}"
        found = _schedules[name] = _noted(problem, what, Schedule, make, _without_rejected)
    return found


def find_contraction(problem: Problem) -> tuple[Step, ...]:
    """The steps of a product of many tensors, found in the same ways."""
    name = class_of(problem)
    found = _contractions.get(name)
    if found is None:
        found = _contractions[name] = _noted(problem, "contraction", tuple[Step, ...], new_contraction)
    return found


def new_contraction(problem: Problem) -> tuple[Step, ...]:
    """The steps of a product of many tensors, chosen for just these operands."""
    return contract(problem.step, problem.operands, problem.sizes, problem.element)


def new_schedule(problem: Problem, backend: Backend) -> Schedule:
    """The schedule of a step, planned for just these operands."""
    p = problem
    planned = plan_step(
        p.step, p.operands, p.sizes, p.element.computes_in, p.requested, p.skip_zeros, p.unsorted
    )
    return backend.write(planned)


def forget() -> None:
    """Ask the disk again for every schedule."""
    _schedules.clear()
    _contractions.clear()


def class_of(problem: Problem) -> Hashable:
    """What steps have in common that share a schedule.

    The format of the result belongs to it, because that must not depend on which step came first.
    """
    sizes = problem.sizes
    bits = {index: size.bit_length() for index, size in sizes.items()}
    is_small = sum(bits.values()) <= MOST_BITS and max(bits.values(), default=0) <= MOST_SIZE_BITS
    extents: tuple[object, ...]
    if is_small:
        sparse = {
            index
            for access in problem.step.accesses
            if problem.operands[access.tensor].is_sparse
            for index in _stored_indices(access, problem.operands[access.tensor].format)
        }
        extents = tuple((i, bits[i]) if i in sparse else (i, "of", size) for i, size in sizes.items())
    else:
        extents = tuple(sizes.items())
    operands = tuple(
        (name, o.format, o.element, o.index, tuple(count.bit_length() for count in o.counts))
        for name, o in problem.operands.items()
    )
    result = problem.requested
    if result is None:
        result = result_format(problem.step, problem.operands, sizes)
    flags = (_family(problem), problem.skip_zeros, problem.unsorted)
    return problem.step, operands, extents, problem.element, result, flags, default_float(), current().without


def _stored_indices(access: Access, form: Format) -> set[str]:
    """The indices of a sparse operand, but for those of its last, dense levels, whose extents count."""
    return {access.indices[dim] for dim in form.order[: len(form) - form.dense_tail]}


def _noted(
    problem: Problem,
    what: str,
    kind: Any,
    make: Callable[[Problem], Found],
    shorten: Callable[[Found], Found] = lambda found: found,
) -> Found:
    """``make(problem)``, unless a process before us has noted what it gives, a value of the type ``kind``."""
    key = cache.make_key(what, _version(), *_facts(problem))
    note = cache.read_note(key)
    if note is not None:
        try:
            known: Found = notes.read(note, kind)
            return known
        except notes.NoteError:  # whatever is wrong with it, planning makes it again
            pass
    made = make(problem)
    with contextlib.suppress(notes.NoteError):  # levels that a user wrote, say
        cache.write_note(key, notes.write(shorten(made)))
    return made


def _without_rejected(schedule: Schedule) -> Schedule:
    """Without what only ``explain`` asks for, which plans anew."""
    planned = schedule.planned
    return replace(schedule, planned=replace(planned, choice=replace(planned.choice, rejected=())))


def _facts(problem: Problem) -> list[str]:
    without = ",".join(sorted(current().without))
    return [repr(problem), _family(problem), repr(default_float()), without, repr(target())]


def _family(problem: Problem) -> str:
    """The name that a format was asked for by, which equal formats may differ in."""
    return "" if problem.requested is None else f"asked for as {problem.requested.family}"


@functools.cache
def _version() -> str:
    """The sources of Scorch, by their times and sizes: other sources may plan otherwise."""
    return sources_version(Path(__file__).parents[2])


def sources_version(root: Path) -> str:
    """All Python files below ``root``, by their places, times and sizes, and the version of Python."""
    digest = hashlib.sha256(platform.python_version().encode())
    folders = [("", str(root))]
    while folders:
        place, folder = folders.pop()
        with os.scandir(folder) as found:
            items = sorted(found, key=lambda item: item.name)
        for item in items:
            if item.name.endswith(".py"):
                status = item.stat()
                digest.update(f"{place}{item.name} {status.st_size} {status.st_mtime_ns}\n".encode())
            elif item.name != "__pycache__" and item.is_dir():
                folders.append((f"{place}{item.name}/", item.path))
    return digest.hexdigest()
