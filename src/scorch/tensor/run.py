"""Running steps on tensors: plan, convert what must be converted, call the kernel.

Everything here works on ``Storage`` and plain dense tensors; ``SparseTensor`` is put around it by the
callers. Prepared steps are kept by what they depend on (statement, formats, shapes, dtypes, magnitude of
counts), so that a warm call plans nothing.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import torch

from scorch.compiler import lattice
from scorch.compiler.densify import nearly_full
from scorch.compiler.infer_format import infer_format, support_of
from scorch.compiler.lattice import EVERYWHERE
from scorch.compiler.plan import Operand, Step
from scorch.compiler.steps import mend_constant, mend_zeros
from scorch.compiler.typing import dtype_of_type, reduced_type, type_of, type_of_dtype
from scorch.errors import ShapeError
from scorch.formats import Format, dense_format
from scorch.loops.types import INT32, Type
from scorch.notation.nodes import Access, Expr, Literal, Op
from scorch.notation.operators import REDUCTIONS
from scorch.notation.trees import substitute
from scorch.runtime.kernel import Schedule, build_together
from scorch.runtime.schedules import Problem, find_contraction, find_schedule, new_schedule
from scorch.settings import current, enabled
from scorch.tensor.budget import is_within_budget
from scorch.tensor.dense import run_dense
from scorch.tensor.prepared import Prepared, Tensor, stride_order
from scorch.tensor.storage import Storage

MOST_PLANS = 4096
WORTH_MENDING = 4  # places for each stored entry from which on a sum counts those not stored

_plans: OrderedDict[object, Prepared] = OrderedDict()
_conversions: OrderedDict[object, Prepared] = OrderedDict()
_contractions: OrderedDict[object, tuple[Step, ...]] = OrderedDict()
_seen: set[Step] = set()  # steps of several kernels that have been run


def operand_of(name: str, tensor: Tensor) -> Operand:
    """A tensor as the compiler sees it; a dense one counts as stored in the order of its strides."""
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
    return (tuple(tensor.shape), tensor.dtype, stride_order(tensor))


def run_step(
    step: Step,
    tensors: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    requested: Format | None = None,
    skip_zeros: bool = False,
    unsorted: bool = False,
) -> Tensor:
    """The result of ``step``: a ``Storage``, or a plain tensor where its format is dense."""
    parts = stored_steps(step, tensors, sizes)
    if len(parts) > 1 and requested is None:
        requested = inferred_format(step, tensors, sizes)
    given = dict(tensors)
    if len(parts) > 2:
        _build_independent(step, parts[:-1], given, sizes)
    for part in parts[:-1]:
        given[part.target.tensor] = run_stored(part, given, sizes)
    found = run_stored(parts[-1], given, sizes, requested, skip_zeros, unsorted)
    return found if len(parts) == 1 else _as_dtype(found, step, tensors)


def _build_independent(
    step: Step, parts: Sequence[Step], tensors: Mapping[str, Tensor], sizes: Mapping[str, int]
) -> None:
    """Compile the kernels of ``parts`` that need no other's result side by side, when ``step`` is new."""
    if step in _seen:
        return
    _seen.add(step)
    sources = []
    for part in parts:
        names = dict.fromkeys(access.tensor for access in part.accesses)
        if all(name in tensors for name in names):
            given = {name: tensors[name] for name in names}
            if any(isinstance(tensor, Storage) for tensor in given.values()):
                sources.append(prepared_step(part, given, sizes).kernel.source)
    build_together(sources)


def _as_dtype(found: Tensor, step: Step, tensors: Mapping[str, Tensor]) -> Tensor:
    """A result put together from several steps in the dtype that ``step`` has."""
    types = {
        access.tensor: operand_of(access.tensor, tensors[access.tensor]).element for access in step.accesses
    }
    dtype = dtype_of_type(result_type(step, types))
    if isinstance(found, torch.Tensor):
        return found.to(dtype)
    return Storage(found.pattern, found.values.to(dtype))


def stored_steps(step: Step, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> tuple[Step, ...]:
    """The steps over stored entries that ``step`` is run as.

    Itself, or those that count zeros that are not stored, or those that multiply two tensors at a time.
    """
    return _mended(step, tensors, sizes) or _contracted(step, tensors, sizes)


def inferred_format(step: Step, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Format:
    """The format of the result of ``step``, which does not depend on the steps it is run as."""
    operands = {access: operand_of(access.tensor, tensors[access.tensor]) for access in step.accesses}
    return infer_format(step, operands, sizes).format


def run_stored(
    step: Step,
    tensors: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    requested: Format | None = None,
    skip_zeros: bool = False,
    unsorted: bool = False,
) -> Tensor:
    """As ``run_step``, over stored entries only."""
    if requested is not None and requested.is_dense:
        requested = dense_format(requested.dims)
    used = dict.fromkeys(access.tensor for access in step.accesses)
    given = {name: tensors[name] for name in used}
    full = made_dense(step, given, sizes, requested)
    if full is not None:
        given[full] = convert(given[full], dense_format(len(operand_of(full, given[full]).shape)))
    if not any(isinstance(tensor, Storage) for tensor in given.values()) and not skip_zeros:
        dense = run_dense(step, {n: t for n, t in given.items() if isinstance(t, torch.Tensor)}, sizes)
        return dense if requested is None or requested.is_dense else from_dense(dense, requested)
    prepared = prepared_step(step, given, sizes, requested, skip_zeros, unsorted)
    return execute(prepared, given)


def made_dense(
    step: Step, tensors: Mapping[str, Tensor], sizes: Mapping[str, int], requested: Format | None
) -> str | None:
    """The sparse operand of ``step`` that is multiplied as a dense one because it is nearly full."""
    if requested is not None and not requested.is_dense:
        return None
    operands = {name: operand_of(name, tensor) for name, tensor in tensors.items()}
    full = nearly_full(step, operands, sizes)
    if full is None or not inferred_format(step, tensors, sizes).is_dense:
        return None
    operand = operands[full]
    size = operand.element.bytes * math.prod(operand.shape)
    return full if is_within_budget(size) else None


def prepared_step(
    step: Step,
    tensors: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    requested: Format | None = None,
    skip_zeros: bool = False,
    unsorted: bool = False,
) -> Prepared:
    """The prepared step for these tensors, made anew only if there was none."""
    facts = tuple((name, key_of(tensor)) for name, tensor in tensors.items())
    key = (step, requested, skip_zeros, unsorted, facts, torch.get_default_dtype(), current().without)
    found = _plans.get(key)
    if found is None:
        problem = _problem(step, tensors, sizes, requested, skip_zeros, unsorted)
        found = _plans[key] = _bind(find_schedule(problem), problem)
        if len(_plans) > MOST_PLANS:
            _plans.popitem(last=False)
    return found


def single_kernel(
    steps: Sequence[Step],
    tensors: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    requested: Format | None,
) -> Prepared | None:
    """The prepared kernel of a statement that is one kernel, for callers that keep it."""
    if len(steps) != 1 or not any(isinstance(tensor, Storage) for tensor in tensors.values()):
        return None
    if len(stored_steps(steps[0], tensors, sizes)) != 1:
        return None
    if made_dense(steps[0], tensors, sizes, requested) is not None:
        return None
    if requested is not None and requested.is_dense:
        requested = dense_format(requested.dims)
    used = dict.fromkeys(access.tensor for access in steps[0].accesses)
    return prepared_step(steps[0], {name: tensors[name] for name in used}, sizes, requested)


def prepare(
    step: Step,
    tensors: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    requested: Format | None = None,
    skip_zeros: bool = False,
    unsorted: bool = False,
) -> Prepared:
    """Plan ``step`` for just these tensors, whatever is known about others like them."""
    problem = _problem(step, tensors, sizes, requested, skip_zeros, unsorted)
    return _bind(new_schedule(problem), problem)


def _problem(
    step: Step,
    tensors: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    requested: Format | None = None,
    skip_zeros: bool = False,
    unsorted: bool = False,
) -> Problem:
    operands = {name: operand_of(name, tensor) for name, tensor in tensors.items()}
    element = result_type(step, {name: operand.element for name, operand in operands.items()})
    used = {index: sizes[index] for index in dict.fromkeys(step.indices)}
    return Problem(step, operands, used, element, requested, skip_zeros, unsorted)


def _bind(schedule: Schedule, problem: Problem) -> Prepared:
    return Prepared(schedule, dtype_of_type(problem.element), problem.sizes, convert_cached)


def result_type(step: Step, types: Mapping[str, Type]) -> Type:
    """The dtype of the result of ``step``."""
    element = type_of(step.body, types).type
    return reduced_type(step.reduction, step.body, element) if step.reduced else element


def execute(prepared: Prepared, tensors: Mapping[str, Tensor]) -> Tensor:
    """Run a prepared step; with ``settings(debug=True)`` the interpreter must agree."""
    sources = [tensors[name] for name, _ in prepared.sources]
    result = prepared(sources)
    if current().debug:
        again = prepared.interpret(sources)
        _compare(result, again, prepared.planned.plan.header)
    return result


# zeros that count ------------------------------------------------------------------------------------


def _mended(step: Step, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> tuple[Step, ...] | None:
    """The steps that replace a reduction for which zeros that are not stored count."""
    if not step.reduced:
        return None
    sparse = [access for access in step.accesses if isinstance(tensors[access.tensor], Storage)]
    if not sparse or (REDUCTIONS[step.reduction].skips_zero and not _may_fill(step.body)):
        return None
    operands = {access: operand_of(access.tensor, tensors[access.tensor]) for access in step.accesses}
    element = result_type(step, {access.tensor: operand.element for access, operand in operands.items()})
    total = math.prod(sizes[index] for index in step.reduced)
    if total == 0 and step.reduction in ("max", "min"):
        empty = [index for index in step.reduced if sizes[index] == 0]
        raise ShapeError(f"{step.reduction} over index {empty[0]!r} of size 0 has no value")
    if total > 0 and support_of(step, operands) == EVERYWHERE:
        fill = lattice.constant(substitute(step.body, {access: Literal(0) for access in sparse}))
        room = math.prod(sizes[index] for index in step.indices)
        if (
            fill is None
            or not math.isfinite(fill)
            or room < WORTH_MENDING * sum(operands[a].nnz for a in sparse)
        ):
            return None
        return mend_constant(step, total, element, fill, sparse)
    return None if REDUCTIONS[step.reduction].skips_zero else mend_zeros(step, total, element)


def _may_fill(body: Expr) -> bool:
    """Whether ``body`` may differ from zero where no operand is stored (products, the usual case, do not)."""
    return not (isinstance(body, Access) or (isinstance(body, Op) and body.name == "mul"))


def _contracted(step: Step, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> tuple[Step, ...]:
    """The steps of a product of many tensors."""
    if len(step.accesses) < 3 or step.reduction != "sum" or not enabled("contract"):
        return (step,)
    used = dict.fromkeys(access.tensor for access in step.accesses)
    if not any(isinstance(tensors[name], Storage) for name in used):
        return (step,)
    key = (step, tuple((name, key_of(tensors[name])) for name in used), current().without)
    found = _contractions.get(key)
    if found is None:
        problem = _problem(step, {name: tensors[name] for name in used}, sizes)
        found = _contractions[key] = find_contraction(problem)
        if len(_contractions) > MOST_PLANS:
            _contractions.popitem(last=False)
    return found


# conversion ------------------------------------------------------------------------------------------


def copy_step(dims: int) -> Step:
    """``B[i,j] = A[i,j]``: what a conversion is."""
    letters = "ijklmnopqrstuvwxyz"
    indices = tuple(letters[dim] if dim < len(letters) else f"i{dim}" for dim in range(dims))
    return Step(Access("B", indices), Access("A", indices), "sum", ())


def convert(source: Tensor, form: Format) -> Tensor:
    """``source`` stored as ``form``."""
    if isinstance(source, torch.Tensor):
        return source if form.is_dense else from_dense(source, form)
    if source.pattern.format == form:
        return source
    key = (source.key, form, torch.get_default_dtype(), current().without)
    prepared = _conversions.get(key)
    if prepared is None or current().debug:
        step = copy_step(len(source.pattern.shape))
        sizes = dict(zip(step.target.indices, source.pattern.shape, strict=True))
        wanted = dense_format(form.dims) if form.is_dense else form
        prepared = prepared_step(step, {"A": source}, sizes, wanted)
        found = execute(prepared, {"A": source})
        _conversions[key] = prepared
        if len(_conversions) > MOST_PLANS:
            _conversions.popitem(last=False)
        return found
    return prepared([source], contiguous=True)


def from_dense(source: torch.Tensor, form: Format) -> Storage:
    """The nonzero values of ``source`` stored as ``form``."""
    step = copy_step(source.dim())
    sizes = dict(zip(step.target.indices, source.shape, strict=True))
    found = run_step(step, {"A": source.detach()}, sizes, form, skip_zeros=True)
    assert isinstance(found, Storage)
    return found


def sorted_storage(source: Storage, form: Format) -> Storage:
    """``source``, whose entries may be unsorted and repeated, as a proper tensor: repeats are summed."""
    step = copy_step(len(source.pattern.shape))
    sizes = dict(zip(step.target.indices, source.pattern.shape, strict=True))
    found = run_step(step, {"A": source}, sizes, form, unsorted=True)
    assert isinstance(found, Storage)
    return found


def convert_cached(source: Storage, form: Format) -> Storage:
    """As ``convert``, but the new pattern and the way the values go are kept with the old pattern."""
    pattern = source.pattern
    if pattern.format == form:
        return source
    found = pattern.converted.get(form)
    if found is None:
        numbered = Storage(pattern, torch.arange(1, pattern.size + 1, device="cpu"))
        moved = convert(numbered, form)
        assert isinstance(moved, Storage)
        found = (moved.pattern, moved.values.sub_(1))
        found = pattern.converted.setdefault(form, found)
    target, places = found
    values = source.values.detach()
    if target.format.levels[-1].is_full:  # places that the old pattern does not store are zero
        padded = torch.cat([values, values.new_zeros(1)])
        return Storage(target, padded[places])
    return Storage(target, values[places])


# checking --------------------------------------------------------------------------------------------


def _compare(result: Tensor, again: Tensor, what: str) -> None:
    def parts(tensor: Tensor) -> list[torch.Tensor]:
        return [tensor] if isinstance(tensor, torch.Tensor) else [*tensor.pattern.arrays, tensor.values]

    for a, b in zip(parts(result), parts(again), strict=True):
        if not torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True):
            raise AssertionError(f"kernel and interpreter disagree on {what.splitlines()[0]}")
