"""Call a kernel step by step: allocate its result, call it, and return its arrays.

Results whose size is not known beforehand take two calls (see ``compiler.lower.assemble``): the first
computes and returns how long the arrays are, the second fills those that were allocated here. The same steps
run on any *engine*: the machine, or the interpreter that checks every access.
"""

from __future__ import annotations

import contextlib
import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from scorch._src.backends.base import Arrays, Check, Executable, Schedule
from scorch._src.compiler.names import safe_tensor
from scorch._src.compiler.typing import dtype_of_type
from scorch._src.loops.types import INT32, LAST_INT32
from scorch.errors import DensityError, FreedError, KernelError


@contextlib.contextmanager
def _allocating() -> Iterator[None]:
    """Say that there is no memory for the result where torch finds none."""
    try:
        yield
    except DensityError:  # a refusal, though a RuntimeError
        raise
    except (RuntimeError, MemoryError) as error:
        raise KernelError(f"out of memory while allocating the result: {error}") from error


def address_of(tensor: torch.Tensor) -> int:
    """Return the address of the elements of ``tensor``; raise where its memory was freed."""
    address = tensor.data_ptr()
    if not address and tensor.numel():
        raise FreedError(
            f"an operand of shape {tuple(tensor.shape)} has no memory: its storage was resized or "
            f"freed; create it again"
        )
    return address


class Engine(Protocol):
    """Where the functions of a kernel run."""

    def slot(self, tensor: torch.Tensor) -> Any:
        """Return what stands for ``tensor`` in an argument slot."""

    def call(self, function: str, slots: list[Any]) -> int: ...


class Launcher(Executable):
    """A kernel that is called through an engine."""

    clears_results = False  # whether memory is filled with numbers that no sum results in

    def __init__(self, schedule: Schedule, sizes: Mapping[str, int]) -> None:
        super().__init__(schedule, sizes)
        self.slots = len(schedule.slots)
        self._place = {name: number for number, name in enumerate(schedule.slots)}

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """Where it runs."""

    @abstractmethod
    def header(self) -> list[Any]:
        """Return the argument slots before those of the arrays."""

    def _empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(count, dtype=dtype, device="cpu")

    def fill(self, arrays: Sequence[torch.Tensor], count: int) -> torch.Tensor:
        if self.writes_everything:
            values = self._empty(count, self.dtype)
            if self.clears_results:
                values.fill_(-101 if values.dtype.is_signed else 101)
        else:
            values = torch.full((count,), self.identity, dtype=self.dtype, device="cpu")
        engine = self.engine
        self._call(engine, "scorch_compute", [*self._inputs(engine, arrays), engine.slot(values)])
        return values

    def build(self, arrays: Sequence[torch.Tensor], check: Check, bound: int = 0) -> Arrays:
        engine = self.engine
        slots = self._inputs(engine, arrays)
        if self.plan.slots:
            return self._build_slots(engine, slots, bound)
        if self.plan.assembly == "rows":
            return self._build_rows(engine, slots)
        return self._build_list(engine, slots, check)

    def _inputs(self, engine: Engine, arrays: Sequence[torch.Tensor]) -> list[Any]:
        return [*self.header(), *(engine.slot(array) for array in arrays)]

    def row_counts(self) -> list[int]:
        """Return the number of positions of each level above the entries of the result."""
        counts, rows = [], 1
        for level in range(self.plan.row_levels or 0):
            rows *= self.plan.result.level_size(level, self.shape)
            counts.append(rows)
        return counts

    def _build_slots(self, engine: Engine, slots: list[Any], bound: int) -> Arrays:
        name = safe_tensor(self.plan.step.target.tensor)
        index, counts, levels = dtype_of_type(self.plan.index), self.row_counts(), len(self.plan.result)
        with _allocating():
            pos = self._empty((counts or [1])[-1] + 1, index)
            crds = [self._empty(bound, index) for _ in range(len(counts), levels)]
            values = self._empty(bound, self.dtype)
        slots += [engine.slot(array) for array in (pos, *crds, values)]
        slots += [0] * (self.slots - len(slots))
        self._call(engine, "scorch_compute", slots)
        nnz = int(slots[self._place[f"{name}_nnz"]])
        if int(slots[self._place["chunk_total"]] if "chunk_total" in self._place else 1) > 1:
            first = len(counts) + 1
            dtypes = {f"exact_{name}{level}_crd": index for level in range(first, levels + 1)}
            dtypes[f"exact_{name}_vals"] = self.dtype
            wanted = {key: functools.partial(self._empty, nnz, dtype) for key, dtype in dtypes.items()}
            *crds, values = self._finish(engine, slots, wanted)
        elif nnz < bound:
            crds, values = [crd[:nnz].clone() for crd in crds], values[:nnz].clone()
        above, below = (None,) * len(counts), (None,) * (len(crds) - 1)
        all_counts = (*counts, *(nnz for _ in crds))
        return Arrays((*above, pos, *below), (*above, *crds), all_counts, values)

    def _build_rows(self, engine: Engine, slots: list[Any]) -> Arrays:
        form, name = self.plan.result, safe_tensor(self.plan.step.target.tensor)
        last = len(form)
        counts = self.row_counts()
        rows = (counts or [1])[-1]
        pos = torch.zeros(rows + 1, dtype=torch.int64, device="cpu")
        slots.append(engine.slot(pos))
        slots += [0] * (self.slots - len(slots))
        self._call(engine, "scorch_compute", slots)
        nnz = int(slots[self._place[f"{name}_nnz"]])
        crd, values = self._finish(
            engine,
            slots,
            {
                f"{name}{last}_crd": lambda: self._empty(nnz, dtype_of_type(self.plan.index)),
                f"{name}_vals": lambda: self._empty(nnz, self.dtype),
            },
        )
        nones: tuple[None, ...] = (None,) * (last - 1)
        return self._arrays((*nones, pos), (*nones, crd), (*counts, nnz), values)

    def _build_list(self, engine: Engine, slots: list[Any], check: Check) -> Arrays:
        form, name = self.plan.result, safe_tensor(self.plan.step.target.tensor)

        def allocate(
            make: Callable[..., torch.Tensor], level: int, count: int, dtype: torch.dtype
        ) -> torch.Tensor:
            if level >= 0 and form.levels[level].is_full:  # below a level with places for every coordinate
                check(count * dtype.itemsize)
            return make(count, dtype=dtype, device="cpu")

        slots += [0] * (self.slots - len(slots))
        self._call(engine, "scorch_compute", slots)
        counts: list[int] = []
        parents = entries = 1
        wanted: dict[str, Callable[[], torch.Tensor]] = {}
        for level, kind in enumerate(form.levels):
            if form.starts_run(level):
                entries = int(slots[self._place[f"{name}{level + 1}_count"]])
                wanted[f"{name}{level + 1}_pos"] = functools.partial(
                    allocate, torch.zeros, level - 1, parents + 1, torch.int64
                )
            if not kind.is_full:
                wanted[f"{name}{level + 1}_crd"] = functools.partial(
                    self._empty, entries, dtype_of_type(self.plan.index)
                )
            parents = kind.count(parents, form.level_size(level, self.shape), entries)
            counts.append(parents)
        make = torch.zeros if form.levels[-1].is_full else torch.empty
        wanted[f"{name}_vals"] = functools.partial(allocate, make, len(form) - 1, parents, self.dtype)
        arrays = dict(zip(wanted, self._finish(engine, slots, wanted), strict=True))
        levels = range(len(form))
        pos = tuple(arrays.get(f"{name}{level + 1}_pos") for level in levels)
        crd = tuple(arrays.get(f"{name}{level + 1}_crd") for level in levels)
        return self._arrays(pos, crd, tuple(counts), arrays[f"{name}_vals"])

    def _finish(
        self, engine: Engine, slots: list[Any], wanted: Mapping[str, Callable[[], torch.Tensor]]
    ) -> list[torch.Tensor]:
        """Allocate ``wanted`` and have the kernel fill it; it frees its own memory in any case."""
        arrays: list[torch.Tensor] = []
        try:
            with _allocating():
                for name, make in wanted.items():
                    arrays.append(make())
                    slots[self._place[name]] = engine.slot(arrays[-1])
        except (DensityError, KernelError):
            slots[self._place["discard"]] = 1
            for name in wanted:
                if isinstance(slots[self._place[name]], int):
                    slots[self._place[name]] = engine.slot(torch.empty(0))
            engine.call("scorch_finish", slots)
            raise
        self._call(engine, "scorch_finish", slots)
        return arrays

    def _arrays(
        self,
        pos: tuple[torch.Tensor | None, ...],
        crd: tuple[torch.Tensor | None, ...],
        counts: tuple[int, ...],
        values: torch.Tensor,
    ) -> Arrays:
        """Convert all index arrays to one dtype: int32 while coordinates and positions fit."""
        wide = self.plan.index != INT32 or max(counts, default=0) > LAST_INT32
        dtype = torch.int64 if wide else torch.int32
        with _allocating():
            pos, crd = (
                tuple([None if array is None else array.to(dtype) for array in arrays])
                for arrays in (pos, crd)
            )
        return Arrays(pos, crd, counts, values)

    def _call(self, engine: Engine, function: str, slots: list[Any]) -> None:
        if engine.call(function, slots) != 0:
            raise KernelError(f"out of memory while computing {self.label}")
