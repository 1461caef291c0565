"""``torch.sparse.softmax`` and ``log_softmax``: over stored entries, as if all others were minus infinity.

For a matrix and ``dim=1`` these are the steps, the first and third over stored entries only:

    m[i] = max(j, A[i,j])    E[i,j] = exp(A[i,j] - m[i])    s[i] = sum(j, E[i,j])    R[i,j] = E[i,j] / s[i]

``E`` and ``R`` have the pattern of ``A``. The rows of a matrix of compressed rows take one kernel for all
steps, where the backend fuses them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import torch

from scorch._src.backends.base import routines_for
from scorch._src.bounded import BoundedCache
from scorch._src.compiler.plan import Step
from scorch._src.engine.additions import is_deterministic
from scorch._src.engine.executable import Prepared
from scorch._src.engine.execute import Task, copy_step, prepared_step, run_stored
from scorch._src.engine.fused_executable import FusedKernel, Steps, fused_kernel
from scorch._src.grad_state import is_transformed
from scorch._src.notation.nodes import Access, Expr, Op
from scorch._src.ops.fallback import run_densely
from scorch._src.ops.reduction.groups import groups_of_pattern, reduced_dims
from scorch._src.ops.reduction.reduction import direct
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import apply, sparse_of, values_of
from scorch._src.tensor.operators import run_by_torch
from scorch._src.tensor.registry import implements, implements_differentiable
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import is_any_autocast_enabled, len_torch_dispatch_stack
from scorch.errors import OperandError, ShapeError
from scorch.settings import current

aten = torch.ops.aten
MAX_CACHED_CALLS = 1024
_FUSED = (torch.float32, torch.float64)
Kernels = list[tuple[str, Prepared]]
_cached_kernels: BoundedCache[Hashable, Kernels] = BoundedCache(MAX_CACHED_CALLS, "softmax")
_fused_kernels: BoundedCache[Hashable, FusedKernel | str] = BoundedCache(MAX_CACHED_CALLS, "fused softmax")


def _softmax(A: SparseTensor, dim: int, half_to_float: bool = False, *, name: str) -> SparseTensor:
    """Divide ``exp(A)`` on the pattern of A by its sums along ``dim``, or take the logarithm of that."""
    storage = A.storage
    shape = storage.pattern.shape
    if not -len(shape) <= dim < len(shape):
        raise ShapeError(f"{name}: dimension {dim} is out of range for a {len(shape)}-D tensor")
    if not storage.values.dtype.is_floating_point:
        raise OperandError(
            f"{name} expected floating-point values, but got {storage.values.dtype}; use .float()"
        )
    if half_to_float:
        storage = Storage(storage.pattern, storage.values.float())
    fused = _run_fused(storage, dim, name)
    if fused is not None:
        return SparseTensor(fused)
    if storage.values.dtype in routines_for(storage.values).run_dtypes and not current().debug:
        values = _softmax_composed(storage.values.detach(), storage.pattern, dim, name == "log_softmax")
        return SparseTensor(Storage(storage.pattern, values))
    key = (name, dim % len(shape), storage.key, current().disable, is_deterministic())
    kernels = None if current().debug else _cached_kernels.get(key)
    if kernels is not None:
        tensors_by_name: dict[str, Storage | torch.Tensor] = {"A": storage}
        for target, prepared in kernels:
            tensors_by_name[target] = prepared([tensors_by_name[source] for source, _ in prepared.sources])
        return SparseTensor(_as_storage(tensors_by_name["R"]))
    indices, kept_indices, summed, sizes = _indices(shape, dim)
    tensors: dict[str, Storage | torch.Tensor] = {"A": storage}
    steps = _steps(indices, kept_indices, summed, name, _on_pattern)
    for step in steps:
        tensors[step.target.tensor] = run_stored(Task(step, tensors, sizes))
    if not isinstance(tensors["m"], Storage) and not current().debug:  # else it depends on the stored rows
        tasks = (Task(step, tensors, sizes).narrowed() for step in steps)
        _cached_kernels[key] = [(task.step.target.tensor, prepared_step(task)) for task in tasks]
    return SparseTensor(_as_storage(tensors["R"]))


def _steps(
    indices: tuple[str, ...],
    kept: tuple[str, ...],
    summed: tuple[str, ...],
    name: str,
    at: Callable[[Access, Expr], Expr],
) -> tuple[Step, ...]:
    """Return the steps; ``at`` restricts an expression to where a tensor has entries."""
    a, e, m, s = Access("A", indices), Access("E", indices), Access("m", kept), Access("s", kept)
    shifted = Op("sub", (a, m))
    last = at(e, Op("div", (e, s)))
    if name == "log_softmax":
        last = at(a, Op("sub", (shifted, Op("log", (s,)))))
    return (
        Step(m, a, "max", summed),
        Step(e, at(a, Op("exp", (shifted,))), "sum", ()),
        Step(s, e, "sum", summed),
        Step(Access("R", indices), last, "sum", ()),
    )


def _run_fused(storage: Storage, dim: int, name: str) -> Storage | None:
    """Compute all steps by one kernel; None where there is none."""
    pattern = storage.pattern
    form = pattern.format
    if not form.is_compressed_matrix or form.order != (0, 1) or dim not in (1, -1) or not pattern.size:
        return None
    if current().debug or storage.values.dtype not in _FUSED:
        return None
    key = (name, storage.key, current().disable, current().backend)
    kernel = _fused_kernels.get(key)
    if kernel is None:
        indices, kept, summed, sizes = _indices(pattern.shape, 1)
        steps = _steps(indices, kept, summed, name, lambda access, value: value)
        wanted = Steps(steps, ("R",), indices, frozenset("AER"), tuple(sizes.items()))
        kernel = _fused_kernels[key] = fused_kernel(wanted, pattern, {"A": storage.values})
    if isinstance(kernel, str):
        return None
    (values,) = kernel.run(pattern, [storage.values], pattern.size)
    return Storage.of_new(pattern, values)


def _indices(shape: tuple[int, ...], dim: int) -> tuple[Any, ...]:
    """Return all indices of a tensor, those but for ``dim``, that of ``dim``, and the size of each."""
    indices = copy_step(len(shape)).target.indices
    kept_indices = tuple(index for index in indices if index != indices[dim])
    return indices, kept_indices, (indices[dim],), dict(zip(indices, shape, strict=True))


def _on_pattern(access: Access, value: Expr) -> Expr:
    return Op("mul", (Op("present", (access,)), value))


def _as_storage(tensor: Storage | torch.Tensor) -> Storage:
    assert isinstance(tensor, Storage)
    return tensor


def _run_densely(function: Any, input: SparseTensor, dim: int | None = None, dtype: Any = None) -> Any:
    """Compute a softmax over all elements, which is dense."""
    return None if dim is None else run_densely(function, (input, dim), {"dtype": dtype})


for _function in (torch.softmax, torch.Tensor.softmax, torch.log_softmax, torch.Tensor.log_softmax):
    direct(_function, takes="dim dtype")(functools.partial(_run_densely, _function))


def _differentiable_softmax(
    input: SparseTensor, dim: int, *, dtype: torch.dtype | None = None, name: str
) -> SparseTensor:
    """Compute ``_softmax``, connected to its input."""
    pattern, values = input.storage.pattern, values_of(input)
    if dtype is not None:
        values = values.to(dtype)
    if is_transformed():
        return sparse_of(pattern, _softmax_composed(values, pattern, dim, name == "log_softmax"))
    result = _softmax(SparseTensor(Storage(pattern, values.detach())), dim, name=name)
    return connect_softmax(values, result, dim, name)


def _run_shortly(input: SparseTensor, dim: int, *, dtype: torch.dtype | None = None, name: str) -> Any:
    """Compute ``_softmax`` without torch, where that has nothing to do."""
    if dtype is not None or type(dim) is not int or len_torch_dispatch_stack() or is_any_autocast_enabled():
        return run_by_torch(getattr(torch.sparse, name), (input, dim), {"dtype": dtype})
    return _softmax(input, dim, name=name)


for _name in ("softmax", "log_softmax"):
    implements(getattr(aten, f"_sparse_{_name}"))(functools.partial(_softmax, name=_name))
    implements(getattr(torch.sparse, _name))(functools.partial(_run_shortly, name=_name))
    implements_differentiable(getattr(torch.sparse, _name))(
        functools.partial(_differentiable_softmax, name=_name)
    )


def _softmax_composed(values: torch.Tensor, pattern: Pattern, dim: int, is_log: bool) -> torch.Tensor:
    """Compute the values of a softmax in functions that ``torch.func`` transforms."""
    groups = groups_of_pattern(pattern, reduced_dims(len(pattern.shape), dim))
    listed = values if groups.numbers is None else values[groups.numbers]
    shifted = listed - groups.spread(groups.reduce(listed.detach(), "amax"))
    total = groups.spread(groups.sum(torch.exp(shifted)))
    result = shifted - total.log() if is_log else torch.exp(shifted) / total
    if groups.numbers is None:
        return result
    return result.new_zeros(pattern.size).index_put((groups.numbers,), result)


def connect_softmax(values: torch.Tensor, result: SparseTensor, dim: int, name: str) -> SparseTensor:
    """Connect ``result``, the softmax of ``values`` on its own pattern, to them."""
    stored = result.storage
    return sparse_of(stored.pattern, apply(_Softmax, values, stored, dim, name == "log_softmax"))


class _Softmax(torch.autograd.Function):
    """The values of a softmax as a differentiable function of those of its input, on one pattern."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, storage: Storage, dim: int, is_log: bool) -> torch.Tensor:
        result = storage.values.detach()
        ctx.save_for_backward(result)
        ctx.pattern, ctx.dim, ctx.is_log = storage.pattern, dim, is_log
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (result,) = ctx.saved_tensors
        shares = result.exp() if ctx.is_log else result
        weighted = gradient if ctx.is_log else gradient * result
        means = apply(_Totals, weighted, ctx.pattern, ctx.dim)
        return weighted - shares * means, None, None, None


class _Totals(torch.autograd.Function):
    """The sum of all entries along ``dim``, at every entry; it is its own adjoint."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, pattern: Pattern, dim: int) -> torch.Tensor:
        ctx.pattern, ctx.dim = pattern, dim
        indices, kept_indices, summed, sizes = _indices(pattern.shape, dim)
        a, s = Access("A", indices), Access("s", kept_indices)
        tensors: dict[str, Storage | torch.Tensor] = {"A": Storage(pattern, values.detach().contiguous())}
        tensors["s"] = run_stored(Task(Step(s, a, "sum", summed), tensors, sizes))
        broadcast = Step(Access("R", indices), _on_pattern(a, s), "sum", ())
        return _as_storage(run_stored(Task(broadcast, tensors, sizes))).values

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return apply(_Totals, gradient, ctx.pattern, ctx.dim), None, None
