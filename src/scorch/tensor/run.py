"""Running steps on tensors: plan, convert what must be converted, call the kernel, wrap the result.

Everything here works on ``Storage`` and plain dense tensors; ``SparseTensor`` is put around it by the
callers. Plans are kept by what they depend on (statement, formats, shapes, dtypes, magnitude of counts), so
that a warm call plans nothing.
"""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from scorch.compiler.infer_format import support_of
from scorch.compiler.lattice import EVERYWHERE
from scorch.compiler.pipeline import Planned, plan_step
from scorch.compiler.plan import Operand, Step
from scorch.compiler.steps import mend_zeros
from scorch.compiler.typing import dtype_of_type, reduced_type, type_of, type_of_dtype
from scorch.errors import DensityError, ShapeError
from scorch.formats import Format, dense_format
from scorch.loops.types import INT32, Type
from scorch.notation.nodes import Access
from scorch.notation.operators import REDUCTIONS
from scorch.runtime import invoke
from scorch.runtime.kernel import CompiledKernel, Engine, Interpreted
from scorch.settings import current
from scorch.tensor.dense import run_dense
from scorch.tensor.storage import Pattern, Storage

Tensor = Storage | torch.Tensor
MOST_PLANS = 4096
SERIAL_WORK = 20_000  # below this many operations threads cost more than they give


@dataclass(frozen=True)
class Prepared:
    """A planned step with its kernel, ready to run on any tensors of the same key."""

    planned: Planned
    kernel: CompiledKernel
    dtype: torch.dtype
    work_per_entry: float


_plans: OrderedDict[object, Prepared] = OrderedDict()


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


def stride_order(tensor: torch.Tensor) -> tuple[int, ...]:
    """The order in which a dense tensor lies in memory, if it does without gaps; else the plain one."""
    plain = tuple(range(tensor.dim()))
    if tensor.is_contiguous():
        return plain
    order = tuple(sorted(plain, key=lambda dim: (-tensor.stride(dim), dim)))
    return order if tensor.permute(order).is_contiguous() else plain


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
    mended = _mended(step, tensors, sizes)
    if mended is None:
        return _run_stored(step, tensors, sizes, requested, skip_zeros, unsorted)
    given = dict(tensors)
    for part in mended[:-1]:
        given[part.target.tensor] = _run_stored(part, given, sizes)
    return _run_stored(mended[-1], given, sizes, requested)


def _run_stored(
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
    if not any(isinstance(tensor, Storage) for tensor in given.values()) and not skip_zeros:
        dense = run_dense(step, {n: t for n, t in given.items() if isinstance(t, torch.Tensor)}, sizes)
        return dense if requested is None or requested.is_dense else from_dense(dense, requested)
    key = (step, requested, skip_zeros, unsorted, tuple((n, key_of(t)) for n, t in given.items()), torch.get_default_dtype())
    prepared = _plans.get(key)
    if prepared is None:
        prepared = prepare(step, given, sizes, requested, skip_zeros, unsorted)
        _plans[key] = prepared
        if len(_plans) > MOST_PLANS:
            _plans.popitem(last=False)
    return execute(prepared, given, sizes)


def prepare(
    step: Step,
    tensors: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    requested: Format | None = None,
    skip_zeros: bool = False,
    unsorted: bool = False,
) -> Prepared:
    """Plan ``step`` for these tensors."""
    operands = {name: operand_of(name, tensor) for name, tensor in tensors.items()}
    element = result_type(step, {name: operand.element for name, operand in operands.items()})
    planned = plan_step(step, operands, sizes, element.computes_in, requested, skip_zeros, unsorted)
    entries = sum(operand.nnz for operand in operands.values() if operand.is_sparse)
    work = planned.choice.chosen.total / max(1, entries)
    return Prepared(planned, CompiledKernel(planned), dtype_of_type(element), work)


def result_type(step: Step, types: Mapping[str, Type]) -> Type:
    """The dtype of the result of ``step``."""
    element = type_of(step.body, types).type
    return reduced_type(step.reduction, step.body, element) if step.reduced else element


def execute(
    prepared: Prepared, tensors: Mapping[str, Tensor], sizes: Mapping[str, int], engine: Engine | None = None
) -> Tensor:
    """Run a prepared step; ``engine`` replaces the compiled kernel (tests run the interpreter)."""
    plan = prepared.planned.plan
    given = dict(tensors)
    for conversion in prepared.planned.conversions:
        source = given[conversion.tensor]
        assert isinstance(source, Storage)
        given[conversion.name] = convert_cached(source, conversion.format)
    check = engine is None and current().debug
    result = _call(prepared, given, sizes, engine or prepared.kernel.native)
    if check:
        again = _call(prepared, given, sizes, prepared.kernel.interpreter())
        _compare(result, again, plan.header)
    return result


def _call(prepared: Prepared, given: Mapping[str, Tensor], sizes: Mapping[str, int], engine: Engine) -> Tensor:
    plan = prepared.planned.plan
    indices = dict.fromkeys(plan.step.indices)
    names = dict.fromkeys(access.tensor for access in plan.step.accesses)
    is_native = not isinstance(engine, Interpreted)
    entries = sum(t.pattern.size for t in given.values() if isinstance(t, Storage))
    inputs: list[object] = [invoke.parallel_runtime() if is_native else 0]
    inputs.append(_threads(prepared.work_per_entry * entries) if is_native else 2)
    inputs += [sizes[index] for index in indices]
    kept = []  # contiguous copies must outlive the call
    for name in names:
        tensor = given[name]
        if isinstance(tensor, Storage):
            pattern, values = tensor.pattern, tensor.values
            inputs += pattern.addresses if is_native else [engine.slot(array) for array in pattern.arrays]
        else:
            values = tensor.permute(stride_order(tensor)).contiguous().detach()
            values = values.resolve_conj().resolve_neg()
        kept.append(values)
        inputs.append(engine.slot(values.reshape(-1) if not is_native else values))
    shape = tuple(sizes[index] for index in plan.step.target.indices)
    match plan.assembly:
        case "dense":
            count = math.prod(shape)
            _check_budget(count * plan.element.bytes, plan.header)
            values = prepared.kernel.fill(engine, inputs, count).to(prepared.dtype)
            stored = values.view([shape[dim] for dim in plan.result.order])
            return stored.permute(sorted(range(len(shape)), key=lambda dim: plan.result.order[dim]))
        case "shared":
            assert plan.pattern is not None
            source = given[plan.pattern.tensor]
            assert isinstance(source, Storage)
            values = prepared.kernel.fill(engine, inputs, source.pattern.size)
            return Storage(source.pattern.carried(plan.result, shape), values.to(prepared.dtype))
    arrays = prepared.kernel.build(engine, inputs, shape)
    pattern = Pattern(plan.result, shape, arrays.pos, arrays.crd, arrays.counts)
    return Storage(pattern, arrays.values.to(prepared.dtype))


def _threads(work: float) -> int:
    if work < SERIAL_WORK:
        return 1
    return current().threads or torch.get_num_threads()


def _check_budget(size: int, what: str) -> None:
    """Refuse a dense result beyond the budget before it is allocated."""
    if size < 1 << 26:
        return
    budget = current().dense_budget
    if budget is None:
        budget = _free_memory() // 4
    if size > budget:
        raise DensityError(
            f"{what.splitlines()[0]} has a dense result of {size:,} bytes, more than the budget of {budget:,}; "
            "ask for a sparse one with format='csr' or 'coo', or raise scorch.settings(dense_budget=...)"
        )


def _free_memory() -> int:
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# zeros that count ------------------------------------------------------------------------------------


def _mended(step: Step, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> tuple[Step, ...] | None:
    """The steps that replace a reduction for which zeros that are not stored count."""
    if not step.reduced or REDUCTIONS[step.reduction].skips_zero:
        return None
    if not any(isinstance(tensors[access.tensor], Storage) for access in step.accesses):
        return None
    operands = {access: operand_of(access.tensor, tensors[access.tensor]) for access in step.accesses}
    element = result_type(step, {access.tensor: operand.element for access, operand in operands.items()})
    total = math.prod(sizes[index] for index in step.reduced)
    if total == 0 and step.reduction != "prod":
        empty = [index for index in step.reduced if sizes[index] == 0]
        raise ShapeError(f"{step.reduction} over index {empty[0]!r} of size 0 has no value")
    if total > 0 and support_of(step, operands) == EVERYWHERE:
        return None
    return mend_zeros(step, total, element)


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
    step = copy_step(len(source.pattern.shape))
    sizes = dict(zip(step.target.indices, source.pattern.shape, strict=True))
    return run_step(step, {"A": source}, sizes, form)


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
        numbered = Storage(pattern, torch.arange(1, pattern.size + 1))
        moved = convert(numbered, form)
        assert isinstance(moved, Storage)
        found = (moved.pattern, moved.values - 1)
        with pattern.lock:
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


