"""Products of sparse tensors whose patterns were multiplied before: only values are computed.

    C = A @ B    # finds where C has nonzeros, and sorts them
    C = A @ B    # adds products to places that are known

The pattern of a result follows from those of the operands. It is cached with the first one's, by a weak
reference: a program that holds the last result while it computes the next one repeats its pattern, which both
then share. Where the last result is gone, the pattern of the second product is kept itself, for those that
follow. All that are kept so take a small share of the memory; those used longest ago are dropped first.
"""

from __future__ import annotations

import functools
import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from scorch._src.backends.base import RELEASE
from scorch._src.bounded import BoundedCache
from scorch._src.compiler.plan import Plan, Step
from scorch._src.compiler.steps import fresh
from scorch._src.dataclass import replace
from scorch._src.events import LISTENERS
from scorch._src.notation.nodes import Access, Op
from scorch._src.storage.budget import host_memory
from scorch._src.storage.storage import Pattern, Storage
from scorch.settings import enabled

if TYPE_CHECKING:
    from scorch._src.engine.executable import Prepared

MIN_PRODUCTS = 1 << 14  # of values, below which a call takes longer to look patterns up than to find them
MOST_PRODUCTS = 12  # for each nonzero, from which on finding it takes little of the time
KEPT_SHARE = 64  # patterns that only this module holds take up to a 64th of the memory
MAX_SAMPLED = 8  # kernels for values at a pattern: one for each magnitude of its nonzeros

Tensor = Storage | torch.Tensor
Prepare = Callable[[Step, Sequence[Tensor]], "Prepared"]  # a step, and the tensors that it accesses in order
Run = Callable[[Sequence[Tensor]], Tensor | None]
Shorten = Callable[["Prepared", Sequence[Tensor]], Run]


class RepeatedProducts:
    """The products of one prepared step."""

    def __init__(self, prepared: Prepared, prepare: Prepare) -> None:
        plan = prepared.planned.plan
        self.places = [n for n, name in enumerate(prepared.names) if plan.operand(name).is_sparse]
        self.products = _products(plan)
        self.prepare = prepare
        name = fresh("pattern", {plan.step.target.tensor, *prepared.names})
        pattern = Access(name, plan.step.target.indices)
        body = Op("on", (pattern, plan.step.body))
        self.step = replace(plan.step, body=body, sampled_at=name, covers=True)
        self.runs: BoundedCache[tuple[int, bool], Run] = BoundedCache(MAX_SAMPLED)

    def again(self, operands: Sequence[Tensor], shorten: Shorten | None = None) -> Storage | None:
        """Compute the values of a product whose pattern is known; None where it is not.

        ``shorten`` returns a shorter way to run a prepared step than its own.
        """
        first, *others = [operands[place].pattern for place in self.places]  # type: ignore[union-attr]
        known: _Known | None = first.structures.get((self, *map(id, others)))
        if known is None or not known.is_of(others):
            return None
        pattern = known.result()
        if pattern is None:
            known.was_dropped = True
            return None
        if not known.pays or (known.is_of_inference and not torch.is_inference_mode_enabled()):
            return None
        if known.kept is not None:
            KEPT.use(known, pattern)
        values = pattern.present if LISTENERS else pattern.crd[-1]  # as many, and not read
        assert values is not None
        at_pattern = Storage.of_saved(pattern, values)
        given = [at_pattern, *operands]
        key = pattern.key, shorten is None or bool(LISTENERS)
        run = self.runs.get(key)
        if run is None:
            sampled = self.prepare(self.step, given)
            run = self.runs[key] = sampled if shorten is None or LISTENERS else shorten(sampled, given)
        result = run(given)
        assert result is None or isinstance(result, Storage)
        return result

    def note(self, operands: Sequence[Tensor], result: Tensor | None) -> None:
        """Note the pattern of a result that has just been computed."""
        if not isinstance(result, Storage) or not enabled("repeat"):
            return
        first, *others = [operands[place].pattern for place in self.places]  # type: ignore[union-attr]
        key = (self, *map(id, others))
        known: _Known | None = first.structures.get(key)
        was_dropped = known is not None and known.was_dropped and known.is_of(others)
        pays = self.products <= MOST_PRODUCTS * result.pattern.size
        known = first.structures[key] = _Known(others, result.pattern, pays)
        if was_dropped and pays:
            KEPT.keep(known, result.pattern)


def repeats(plan: Plan) -> bool:
    """Whether the pattern of the result follows from those of operands, and takes much of the time."""
    step = plan.step
    is_product = plan.assembly == "rows" and plan.bitmap and step.reduction == "sum" and bool(step.reduced)
    if not is_product or not plan.parallel or plan.is_grid or plan.skip_zeros or step.sampled_at:
        return False
    if len(step.accesses) != 2 or not all(operand.is_sparse for operand in plan.operands):
        return False
    is_row = plan.result.starts_run(len(plan.result) - 1) and not plan.result.is_blocked
    return is_row and enabled("lookup") and enabled("repeat") and _products(plan) >= MIN_PRODUCTS


def _products(plan: Plan) -> float:
    """About how many products are added up, if the entries of operands lie anywhere."""
    operands = [plan.operand(access.tensor) for access in plan.step.accesses]
    first, *others = [operand for operand in operands if operand.is_sparse]
    return first.nnz * math.prod(operand.row_length for operand in others)


class _Known:
    """The pattern of a result, and those of the other operands, of which it depends."""

    def __init__(self, others: Sequence[Pattern], result: Pattern, pays: bool) -> None:
        own = weakref.ref(self)

        def lose(_: object) -> None:  # one of the other operands, with which the result will not be computed
            known = own()
            if known is not None:
                KEPT.drop(known)

        self.others = [weakref.ref(pattern, lose) for pattern in others]
        self.result = weakref.ref(result)
        self.pays = pays
        self.is_of_inference = any(array.is_inference() for array in result.arrays)
        self.kept: Pattern | None = None  # the result's, where nothing else may hold it
        self.cached = 0  # attributes of that, when its size was counted
        self.was_dropped = False  # before it could be repeated

    def is_of(self, others: Sequence[Pattern]) -> bool:
        return all(reference() is pattern for reference, pattern in zip(self.others, others, strict=True))


def _nothing() -> None:
    return None


class _Kept:
    """Those whose result's pattern is kept, the last used at the end, within a share of the memory."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a reference may die while this thread holds it
        self.sizes: OrderedDict[weakref.ref[_Known], int] = OrderedDict()
        self.bytes = 0
        self.last: Callable[[], _Known | None] = _nothing  # a weak reference to the one used last

    @functools.cached_property
    def most(self) -> int:
        return host_memory() // KEPT_SHARE

    def keep(self, known: _Known, pattern: Pattern) -> None:
        """Keep the pattern of a result, and drop others if all are more than may be kept."""
        arrays = {id(array): array for array in pattern.cached_arrays()}.values()
        size = sum(array.numel() * array.element_size() for array in arrays)
        self.last, known.cached = weakref.ref(known), len(pattern.__dict__)
        with self.lock:
            known.kept = pattern
            reference = weakref.ref(known, self._forget)
            self._forget(reference)
            self.sizes[reference] = size
            self.bytes += size
            while self.bytes > self.most:
                oldest = next(iter(self.sizes))
                dropped = oldest()
                if dropped is None:
                    self._forget(oldest)
                else:
                    self.drop(dropped)

    def drop(self, known: _Known) -> None:
        """Drop a pattern, which nothing may hold then."""
        known.kept = None
        self._forget(weakref.ref(known))

    def use(self, known: _Known, pattern: Pattern) -> None:
        """Note that a pattern is used again; count what has been cached with it."""
        if known is not self.last() or known.cached != len(pattern.__dict__):
            self.keep(known, pattern)

    def release(self) -> None:
        """Drop all patterns that nothing else holds."""
        with self.lock:
            self.last = _nothing
            for known in [reference() for reference in self.sizes]:
                if known is not None:
                    self.drop(known)

    def _forget(self, reference: weakref.ref[_Known]) -> None:
        with self.lock:
            self.bytes -= self.sizes.pop(reference, 0)


KEPT = _Kept()
RELEASE.append(KEPT.release)
