"""Cached schedules, so that a step is planned once: by structure class in memory, by its numbers on disk.

Planning a step takes some milliseconds of Python, as long as finding its library on disk several times over.
Tensors of one *class* share a schedule within a process: the same formats and dtypes, the same dense extents,
and sizes and numbers of entries of the same magnitude; so batches that differ a little are planned once. On
disk a schedule is cached by the exact numbers it was planned for and by the sources of Scorch itself, so that
what a program does never depends on what another one did before. What is read there is only ever data
(``notes``), and what is damaged counts as absent.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from scorch._src.backends import cache, sources
from scorch._src.backends.base import Backend, Schedule
from scorch._src.bounded import BoundedCache
from scorch._src.compiler.pipeline import plan_step, result_format
from scorch._src.compiler.plan import Operand, Step
from scorch._src.compiler.schedule.contract import contract
from scorch._src.compiler.target import target, using_target
from scorch._src.compiler.typing import default_float, result_type
from scorch._src.dataclass import dataclass, replace
from scorch._src.engine import notes
from scorch._src.formats import Format
from scorch._src.loops.grid import Grid
from scorch._src.loops.types import FLOAT32, FLOAT64, INT32, Type
from scorch._src.notation.nodes import Access
from scorch.settings import current

MAX_SCHEDULES = 4096
MAX_TOTAL_SIZE_BITS = 62  # of all sizes together: beyond, keys and index types may depend on the very sizes
MAX_SIZE_BITS = 30
ATOMIC = (FLOAT32, FLOAT64, INT32)  # which devices add without a lock

_schedules: BoundedCache[Hashable, Schedule] = BoundedCache(MAX_SCHEDULES, "schedules")
_contractions: BoundedCache[Hashable, tuple[Step, ...]] = BoundedCache(MAX_SCHEDULES, "contraction schedules")

Value = TypeVar("Value")
notes.register(Schedule)
notes.register(Grid)


@dataclass(frozen=True)
class Problem:
    """A step and its operands: all that a schedule depends on, besides settings."""

    step: Step
    operands: Mapping[str, Operand]
    sizes: Mapping[str, int]
    requested: Format | None = None
    skip_zeros: bool = False
    unsorted: bool = False
    may_add: bool = False  # threads to one place, in any order

    @functools.cached_property
    def element(self) -> Type:
        """The dtype of the result."""
        return result_type(self.step, {name: operand.element for name, operand in self.operands.items()})


def find_schedule(problem: Problem, backend: Backend) -> Schedule:
    """Look up the schedule of a step: of its class in this process, else on disk, else plan it."""
    name = backend.name, class_of(problem)
    schedule = _schedules.get(name)
    if schedule is None:
        make = functools.partial(new_schedule, backend=backend)
        what = f"schedule for {backend.name}"
        with using_target(backend.target):
            schedule = _schedules[name] = _read_or_make(problem, what, Schedule, make, _without_rejected)
    return schedule


def find_contraction(problem: Problem) -> tuple[Step, ...]:
    """Look up the steps of a product of many tensors in the same way."""
    name = class_of(problem)
    steps = _contractions.get(name)
    if steps is None:
        steps = _contractions[name] = _read_or_make(problem, "contraction", tuple[Step, ...], new_contraction)
    return steps


def new_contraction(problem: Problem) -> tuple[Step, ...]:
    """Choose the steps of a product of many tensors for just these operands."""
    return contract(problem.step, problem.operands, problem.sizes, problem.element)


def new_schedule(problem: Problem, backend: Backend) -> Schedule:
    """Plan the schedule of a step for just these operands."""
    p = problem
    with using_target(backend.target):
        planned = plan_step(
            p.step, p.operands, p.sizes, p.element.computes_in, p.requested, p.skip_zeros, p.unsorted,
            p.may_add and p.element in ATOMIC,
        )  # fmt: skip
        if p.element != p.element.computes_in:
            planned = replace(planned, stored=p.element)
        return backend.write(planned)


def forget() -> None:
    """Clear the schedules in memory, so that they are read from disk."""
    _schedules.clear()
    _contractions.clear()


def class_of(problem: Problem) -> Hashable:
    """Return what steps that share a schedule have in common.

    The format of the result belongs to it, because that must not depend on which step came first.
    """
    sizes = problem.sizes
    bits = {index: size.bit_length() for index, size in sizes.items()}
    is_small = sum(bits.values()) <= MAX_TOTAL_SIZE_BITS and max(bits.values(), default=0) <= MAX_SIZE_BITS
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
    flags = (_family(problem), problem.skip_zeros, problem.unsorted, problem.may_add)
    return problem.step, operands, extents, problem.element, result, flags, default_float(), current().disable


def _stored_indices(access: Access, form: Format) -> set[str]:
    """Return the indices of a sparse operand without those of its last, dense levels, whose extents count."""
    return {access.indices[dim] for dim in form.order[: len(form) - form.dense_tail]}


def _read_or_make(
    problem: Problem,
    what: str,
    kind: Any,
    make: Callable[[Problem], Value],
    shorten: Callable[[Value], Value] = lambda value: value,
) -> Value:
    """Read the note of type ``kind`` that an earlier process wrote for ``problem``, or make and write it."""
    key = cache.make_key(what, sources.version(), *_descriptor(problem))
    note = cache.read_note(key)
    if note is not None:
        try:
            known: Value = notes.read(note, kind)
            return known
        except notes.NoteError:  # whatever is wrong with it, planning replaces it
            pass
    value = make(problem)
    with contextlib.suppress(notes.NoteError):  # levels that a user wrote, say
        cache.write_note(key, notes.write(shorten(value)))
    return value


def _without_rejected(schedule: Schedule) -> Schedule:
    """Drop what only ``explain`` reads, which plans anew."""
    planned = schedule.planned
    return replace(schedule, planned=replace(planned, choice=replace(planned.choice, rejected=())))


def _descriptor(problem: Problem) -> list[str]:
    disabled = ",".join(sorted(current().disable))
    return [repr(problem), _family(problem), repr(default_float()), disabled, repr(target())]


def _family(problem: Problem) -> str:
    """Return the name that a format was requested by, in which equal formats may differ."""
    return "" if problem.requested is None else f"asked for as {problem.requested.family}"
