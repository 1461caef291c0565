"""Run steps on tensors: plan, convert what must be converted, call the kernel.

Everything here works on ``Storage`` and plain dense tensors; ``SparseTensor`` is put around it by the
callers. Prepared steps are cached by what they depend on (statement, formats, shapes, dtypes, magnitude of
counts), so that a warm call plans nothing.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Mapping, Sequence

import torch

from scorch._src.backends.base import Backend, Schedule, backend_for
from scorch._src.bounded import BoundedCache
from scorch._src.compiler.at_zero import value_at_zero
from scorch._src.compiler.lattice import EVERYWHERE
from scorch._src.compiler.plan import Operand, Step
from scorch._src.compiler.schedule.densify import nearly_full
from scorch._src.compiler.schedule.infer_format import infer_format, support_of
from scorch._src.compiler.steps import correct_for_implicit_constant, correct_for_implicit_zeros
from scorch._src.compiler.typing import dtype_of_type, result_type, type_of_dtype
from scorch._src.dataclass import dataclass, replace
from scorch._src.engine.additions import without_conversion
from scorch._src.engine.dense_steps import matrix_product, run_dense
from scorch._src.engine.executable import Prepared, Tensor, stride_order
from scorch._src.engine.one_device import on_one_device
from scorch._src.engine.repeated_products import RepeatedProducts, repeats
from scorch._src.engine.schedules import Problem, find_contraction, find_schedule, new_schedule
from scorch._src.events import LISTENERS, emit
from scorch._src.formats import Format, dense_format
from scorch._src.grad_state import outside_modes
from scorch._src.loops.operators import REDUCTIONS
from scorch._src.loops.types import INT32
from scorch._src.notation.nodes import Access, Expr, Op
from scorch._src.storage.budget import is_within_budget
from scorch._src.storage.relevel import (
    has_mostly_empty_lines,
    list_of,
    releveled,
    shares_entries,
    swaps_levels,
    transposed,
    transposed_pattern,
)
from scorch._src.storage.storage import Pattern, Storage
from scorch.errors import ShapeError
from scorch.settings import current, enabled

MAX_PLANS = 4096
MIN_PLACES_PER_ENTRY = 4  # from which on a sum corrects for places that are not stored

_plans: BoundedCache[object, Prepared] = BoundedCache(MAX_PLANS, "steps")
_conversions: BoundedCache[object, Prepared] = BoundedCache(MAX_PLANS, "conversions")
_contractions: BoundedCache[object, tuple[Step, ...]] = BoundedCache(MAX_PLANS, "contractions")
_seen: BoundedCache[Step, bool] = BoundedCache(MAX_PLANS)  # steps of several kernels that have been run


def operand_of(name: str, tensor: Tensor) -> Operand:
    """Return a tensor as the compiler sees it; a dense one counts as stored in the order of its strides."""
    if isinstance(tensor, Storage):
        return tensor.operand(name)
    shape = tuple(tensor.shape)
    form = dense_format(len(shape), stride_order(tensor))
    counts, positions = [], 1
    for dim in form.order:
        positions *= shape[dim]
        counts.append(positions)
    return Operand(name, form, type_of_dtype(tensor.dtype), INT32, shape, tuple(counts))


def key_of(tensor: Tensor) -> object:
    if isinstance(tensor, Storage):
        return tensor.key
    return (tuple(tensor.shape), tensor.dtype, stride_order(tensor), tensor.device)


@dataclass(frozen=True)
class Task:
    """A step, the tensors it reads and what its result is to be.

    ``requested`` is the format of the result, where it is not to be inferred. ``skip_zeros``: zeros among the
    values are not stored. ``unsorted``: the entries of the only tensor come in any order and may repeat.
    """

    step: Step
    tensors: Mapping[str, Tensor]
    sizes: Mapping[str, int]
    requested: Format | None = None
    skip_zeros: bool = False
    unsorted: bool = False

    def narrowed(self) -> Task:
        """Drop the tensors that the step does not read, and all but the rank of a dense format.

        Those that are left are on one device.
        """
        used = on_one_device({access.tensor: self.tensors[access.tensor] for access in self.step.accesses})
        form = self.requested
        if form is not None and form.is_dense:
            form = dense_format(form.dims)
        return replace(self, tensors=used, requested=form)

    @property
    def backend(self) -> Backend:
        """The backend of the device of its tensors."""
        first = next(iter(self.tensors.values()), None)
        return backend_for() if first is None else backend_for(first.device)

    @property
    def has_sparse(self) -> bool:
        return any(isinstance(tensor, Storage) for tensor in self.tensors.values())

    def operands(self) -> dict[str, Operand]:
        """Return the tensors as the compiler sees them."""
        return {name: operand_of(name, tensor) for name, tensor in self.tensors.items()}

    def operands_by_access(self) -> dict[Access, Operand]:
        return {
            access: operand_of(access.tensor, self.tensors[access.tensor]) for access in self.step.accesses
        }

    def problem(self, may_add: bool = False) -> Problem:
        """Return the task as the compiler sees it."""
        sizes = {index: self.sizes[index] for index in dict.fromkeys(self.step.indices)}
        flags = (self.skip_zeros, self.unsorted, may_add)
        return Problem(self.step, self.operands(), sizes, self.requested, *flags)


def run_step(task: Task) -> Tensor:
    """Run a step; the result is a ``Storage``, or a plain tensor where its format is dense."""
    parts = stored_steps(task)
    if len(parts) == 1:
        return run_stored(task)
    requested = inferred_format(task) if task.requested is None else task.requested
    if len(parts) > 2:
        _build_independent(task, parts[:-1])
    tensors = dict(task.tensors)
    for part in parts[:-1]:
        tensors[part.target.tensor] = run_stored(Task(part, tensors, task.sizes))
    last = Task(parts[-1], tensors, task.sizes, requested, task.skip_zeros, task.unsorted)
    return _as_dtype(run_stored(last), task)


def _build_independent(task: Task, parts: Sequence[Step]) -> None:
    """Compile the kernels of ``parts`` that need no other's result side by side, when the step is new."""
    if task.step in _seen:
        return
    _seen[task.step] = True
    sources = []
    for part in parts:
        if all(access.tensor in task.tensors for access in part.accesses):
            alone = Task(part, task.tensors, task.sizes).narrowed()
            if alone.has_sparse:
                sources.append(prepared_step(alone).kernel.source)
    task.backend.build_ahead(sources)


def _as_dtype(result: Tensor, task: Task) -> Tensor:
    """Cast a result of several steps to the dtype of the step of ``task``."""
    types = {access.tensor: operand.element for access, operand in task.operands_by_access().items()}
    dtype = dtype_of_type(result_type(task.step, types))
    if isinstance(result, torch.Tensor):
        return result.to(dtype)
    return Storage(result.pattern, result.values.to(dtype))


def stored_steps(task: Task) -> tuple[Step, ...]:
    """Return the steps over stored entries that a step is run as.

    Itself, or those that correct for implicit zeros, or those that multiply two tensors at a time.
    """
    return _correct_for_implicit_zeros(task) or _contracted(task)


def inferred_format(task: Task) -> Format:
    """Infer the format of the result where none is requested; the steps it is run as do not matter."""
    return infer_format(task.step, task.operands_by_access(), task.sizes).format


def run_stored(task: Task) -> Tensor:
    """Run a step over stored entries only."""
    task = task.narrowed()
    full = densified_operand(task)
    if full is not None:
        task = replace(task, tensors={**task.tensors, full: _dense_copy(task.tensors[full])})
    if not task.has_sparse and not task.skip_zeros:
        return _run_dense(task)
    return execute(prepared_step(task), task.tensors)


def _dense_copy(tensor: Tensor) -> torch.Tensor:
    """Return a sparse tensor as a dense one to be read only: where every place is stored, its own values."""
    assert isinstance(tensor, Storage)
    pattern = tensor.pattern
    if not operand_of("", tensor).is_full:
        dense = convert(tensor, dense_format(len(pattern.shape)))
        assert isinstance(dense, torch.Tensor)
        return dense
    order = pattern.format.order
    stored = tensor.values.view([pattern.shape[dim] for dim in order])
    return stored.permute(sorted(range(len(order)), key=lambda level: order[level]))


def _run_dense(task: Task) -> Tensor:
    tensors = {name: tensor for name, tensor in task.tensors.items() if isinstance(tensor, torch.Tensor)}
    start = time.perf_counter()
    dense = run_dense(task.step, tensors, task.sizes)
    if LISTENERS:
        emit("torch", task.step, tuple(tensors.values()), dense, start)
    return dense if task.requested is None else convert(dense, task.requested)


def densified_operand(task: Task) -> str | None:
    """Return the name of the sparse operand that is multiplied as a dense one, as it is nearly full."""
    if not task.step.reduced or (task.requested is not None and not task.requested.is_dense):
        return None
    operands = task.operands()
    full = nearly_full(task.step, operands, task.sizes)
    if full is None or not inferred_format(task).is_dense:
        return None
    operand = operands[full]
    size = operand.element.bytes * math.prod(operand.shape)
    return full if operand.is_full or is_within_budget(size, task.tensors[full].device) else None


def prepared_step(task: Task) -> Prepared:
    """Look up the prepared step for these tensors; prepare it if there is none."""
    descriptors = tuple((name, key_of(tensor)) for name, tensor in task.tensors.items())
    backend = task.backend
    settings = (backend.name, torch.get_default_dtype(), current().disable)

    def find(may_add: bool) -> Prepared:
        flags = (task.skip_zeros, task.unsorted, may_add)
        key = (task.step, task.requested, flags, descriptors, *settings)
        prepared = _plans.get(key)
        if prepared is None:
            problem = task.problem(may_add)
            prepared = _plans[key] = _bind(find_schedule(problem, backend), backend, problem)
        return prepared

    return without_conversion(find, task.tensors)


def single_kernel(
    steps: Sequence[Step],
    tensors: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    requested: Format | None,
) -> Prepared | DenseProduct | None:
    """Return what runs a statement that is one kernel or one dense product, for callers that cache it."""
    if len(steps) != 1:
        return None
    task = Task(steps[0], tensors, sizes, requested)
    if not task.has_sparse or len(stored_steps(task)) != 1:
        return None
    task = task.narrowed()
    full = densified_operand(task)
    return prepared_step(task) if full is None else DenseProduct(task, full)


class DenseProduct:
    """A product whose nearly full operand is densified at each call, in place of a prepared kernel."""

    def __init__(self, task: Task, full: str) -> None:
        self.step, self.sizes, self.full = task.step, dict(task.sizes), full
        self.sources: list[tuple[str, None]] = [(name, None) for name in task.tensors]
        operand = operand_of(full, task.tensors[full])
        self.bytes = 0 if operand.is_full else operand.element.bytes * math.prod(operand.shape)
        self.multiply = matrix_product(task.step)

    def __call__(self, sources: Sequence[Tensor], contiguous: bool = False) -> Tensor | None:
        """Multiply; None where the budget has no room for the dense tensor now."""
        if not is_within_budget(self.bytes, sources[0].device):
            return None
        tensors = {}
        for (name, _), tensor in zip(self.sources, sources, strict=True):
            tensors[name] = _dense_copy(tensor) if isinstance(tensor, Storage) else tensor
        start = time.perf_counter()
        multiply = functools.partial(run_dense, self.step, sizes=self.sizes)
        product = (self.multiply or multiply)(tensors)
        if LISTENERS:
            emit("torch", self.step, tuple(tensors.values()), product, start)
        return product


def prepare(task: Task) -> Prepared:
    """Plan a step for just these tensors, without the caches."""

    def find(may_add: bool) -> Prepared:
        problem, backend = task.problem(may_add), task.backend
        return _bind(new_schedule(problem, backend), backend, problem)

    return without_conversion(find, task.tensors)


def _bind(schedule: Schedule, backend: Backend, problem: Problem) -> Prepared:
    dtype = dtype_of_type(problem.element)
    prepared = Prepared(schedule, backend, dtype, problem.sizes, convert_cached)
    if repeats(prepared.planned.plan):

        def prepare_again(step: Step, tensors: Sequence[Tensor]) -> Prepared:
            names = dict.fromkeys(access.tensor for access in step.accesses)
            return prepared_step(
                Task(step, dict(zip(names, tensors, strict=True)), prepared.sizes, prepared.format)
            )

        prepared.repeated = RepeatedProducts(prepared, prepare_again)
    return prepared


def execute(prepared: Prepared, tensors: Mapping[str, Tensor]) -> Tensor:
    """Run a prepared step; with ``settings(debug=True)`` the interpreter must agree."""
    sources = [tensors[name] for name, _ in prepared.sources]
    result = prepared(sources)
    if current().debug:
        expected = prepared.interpret(sources)
        _compare(result, expected, prepared.planned.plan.header)
    return result


# implicit zeros ---------------------------------------------------------------------------------------


def _correct_for_implicit_zeros(task: Task) -> tuple[Step, ...] | None:
    """Return the steps that replace a reduction for which implicit zeros count; None: it needs none."""
    step, sizes = task.step, task.sizes
    if not step.reduced or (REDUCTIONS[step.reduction].skips_zero and not _may_fill(step.body)):
        return None
    total = math.prod(sizes[index] for index in step.reduced)
    if total == 0 and step.reduction in ("max", "min"):
        empty = [index for index in step.reduced if sizes[index] == 0]
        raise ShapeError(f"{step.reduction} over index {empty[0]!r} of size 0 has no identity")
    sparse = [access for access in step.accesses if isinstance(task.tensors[access.tensor], Storage)]
    if not sparse:
        return None
    operands = task.operands_by_access()
    element = result_type(step, {access.tensor: operand.element for access, operand in operands.items()})
    if total > 0 and support_of(step.body, operands) == EVERYWHERE:
        fill = value_at_zero(step.body, operands)
        if fill == 0 and REDUCTIONS[step.reduction].skips_zero:
            return None
        room = math.prod(sizes[index] for index in step.indices)
        if (
            fill is None
            or not math.isfinite(fill)
            or room < MIN_PLACES_PER_ENTRY * sum(operands[a].nnz for a in sparse)
        ):
            return None
        return correct_for_implicit_constant(step, total, element, fill, sparse)
    return None if REDUCTIONS[step.reduction].skips_zero else correct_for_implicit_zeros(step, total, element)


def _may_fill(body: Expr) -> bool:
    """Check whether ``body`` may differ from zero where no operand is stored (products never do)."""
    return not (isinstance(body, Access) or (isinstance(body, Op) and body.name == "mul"))


def _contracted(task: Task) -> tuple[Step, ...]:
    """Return the steps of a product of many tensors."""
    step = task.step
    if not step.reduced or step.reduction != "sum" or len(step.accesses) < 3 or not enabled("contract"):
        return (step,)
    used = Task(step, task.tensors, task.sizes).narrowed()
    if not used.has_sparse:
        return (step,)
    descriptors = tuple((name, key_of(tensor)) for name, tensor in used.tensors.items())
    key = (step, descriptors, current().disable)
    steps = _contractions.get(key)
    if steps is None:
        steps = _contractions[key] = find_contraction(used.problem())
    return steps


# conversion ------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=128)  # torch's tensors have up to 64 dimensions
def copy_step(dims: int) -> Step:
    """Return ``B[i,j] = A[i,j]``, the step of a conversion."""
    letters = "ijklmnopqrstuvwxyz"
    indices = tuple(letters[dim] if dim < len(letters) else f"i{dim}" for dim in range(dims))
    return Step(Access("B", indices), Access("A", indices), "sum", ())


def copy_task(source: Tensor, form: Format, skip_zeros: bool = False, unsorted: bool = False) -> Task:
    """Return the task that copies ``source`` to the format ``form``."""
    shape = source.pattern.shape if isinstance(source, Storage) else tuple(source.shape)
    step = copy_step(len(shape))
    sizes = dict(zip(step.target.indices, shape, strict=True))
    return Task(step, {"A": source}, sizes, form, skip_zeros, unsorted)


def convert(source: Tensor, form: Format) -> Tensor:
    """Convert ``source`` to the format ``form``."""
    if isinstance(source, torch.Tensor):
        return source if form.is_dense else from_dense(source, form)
    if source.pattern.format == form:
        return source
    if shares_entries(source.pattern.format, form) and not current().debug:
        return releveled(source, form)
    if has_mostly_empty_lines(source.pattern, form) and not current().debug:
        return releveled(convert(source, list_of(form)), form)  # type: ignore[arg-type]
    if swaps_levels(source.pattern.format, form) and not current().debug:
        swapped = transposed(source, form)
        if swapped is not None:
            return swapped
    key = (source.key, form, current().backend, torch.get_default_dtype(), current().disable)
    prepared = _conversions.get(key)
    if prepared is None or current().debug:
        task = copy_task(source, form).narrowed()
        prepared = prepared_step(task)
        result = execute(prepared, task.tensors)
        _conversions[key] = prepared
        return result
    return prepared([source], contiguous=True)


def from_dense(source: torch.Tensor, form: Format) -> Storage:
    """Store the nonzero values of ``source`` as ``form``."""
    result = run_step(copy_task(source.detach(), form, skip_zeros=True))
    assert isinstance(result, Storage)
    return result


def sorted_storage(source: Storage, form: Format) -> Storage:
    """Sort the entries of ``source`` and sum repeated ones."""
    result = run_step(copy_task(source, form, unsorted=True))
    assert isinstance(result, Storage)
    return result


def convert_cached(source: Storage, form: Format) -> Storage:
    """Convert ``source``; the new pattern, and where values come from, are cached with the old pattern."""
    pattern = source.pattern
    if pattern.format == form:
        return source
    target, places = converted_pattern(pattern, form)
    values = source.values.detach()
    if target.format.is_padded:
        return Storage(target, values_from(values, target, places))
    return Storage(target, backend_for(values.device).routines.take(values, places))


def converted_pattern(pattern: Pattern, form: Format) -> tuple[Pattern, torch.Tensor]:
    """Return the pattern stored as ``form``, and where each of its values comes from; both are cached."""
    converted = pattern.converted.get(form)
    if converted is None:
        converted = pattern.converted.setdefault(form, _convert_pattern(pattern, form))
    return converted


@outside_modes
def _convert_pattern(pattern: Pattern, form: Format) -> tuple[Pattern, torch.Tensor]:
    converted = None
    is_by_routine = swaps_levels(pattern.format, form) and not has_mostly_empty_lines(pattern, form)
    if is_by_routine and not current().debug:
        converted = transposed_pattern(pattern, form)
    if converted is None:
        numbered = Storage(pattern, torch.arange(1, pattern.size + 1, device=pattern.device))
        moved = convert(numbered, form)
        assert isinstance(moved, Storage)
        converted = (moved.pattern, moved.values.sub_(1))
    backend_for(pattern.device).routines.settle(pattern.device)
    return converted


def values_from(values: torch.Tensor, target: Pattern, places: torch.Tensor) -> torch.Tensor:
    """Return the values of a converted pattern; positions that the old one does not store, -1, are zero."""
    if not target.format.is_padded:
        return values.index_select(0, places)
    padded = torch.cat([values, values.new_zeros(1)])
    return padded[places]


# checking --------------------------------------------------------------------------------------------


def _compare(result: Tensor, expected: Tensor, what: str) -> None:
    def parts(tensor: Tensor) -> list[torch.Tensor]:
        return [tensor] if isinstance(tensor, torch.Tensor) else [*tensor.pattern.arrays, tensor.values]

    for a, b in zip(parts(result), parts(expected), strict=True):
        if not torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True):
            raise AssertionError(f"kernel and interpreter disagree on {what.splitlines()[0]}")
