"""``torch.sparse.softmax`` and ``log_softmax``: over stored entries, as if all others were minus infinity.

For a matrix and ``dim=1`` these are the steps, the first and third over stored entries only:

    m[i] = max(j, A[i,j])    E[i,j] = exp(A[i,j] - m[i])    s[i] = sum(j, E[i,j])    R[i,j] = E[i,j] / s[i]

``E`` and ``R`` have the pattern of ``A``.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from scorch._src.bounded import BoundedCache
from scorch._src.compiler.plan import Step
from scorch._src.engine.executable import Prepared
from scorch._src.engine.execute import Task, copy_step, prepared_step, run_stored
from scorch._src.grad_state import is_transformed
from scorch._src.notation.nodes import Access, Expr, Op
from scorch._src.ops.fallback import densely
from scorch._src.ops.reduction.direct import direct
from scorch._src.ops.reduction.groups import groups_of_pattern, reduced_dims
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import apply, sparse_of, values_of
from scorch._src.tensor.registry import implements, implements_differentiable
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import OperandError, ShapeError
from scorch.settings import current

aten = torch.ops.aten
MOST_CALLS = 1024
Kernels = list[tuple[str, Prepared]]
_known: BoundedCache[Hashable, Kernels] = BoundedCache(
    MOST_CALLS, "softmax"
)  # the kernels of calls made before


def _softmax(A: SparseTensor, dim: int, half_to_float: bool = False, *, name: str) -> SparseTensor:
    """``exp(A)`` on the pattern of A divided by its sums along ``dim``, or the logarithm of that."""
    storage = A.storage
    shape = storage.pattern.shape
    if not -len(shape) <= dim < len(shape):
        raise ShapeError(f"{name} over dimension {dim} of a tensor with {len(shape)} dimensions")
    if not storage.values.dtype.is_floating_point:
        raise OperandError(f"{name} needs floating-point values, not {storage.values.dtype}; use .float()")
    if half_to_float:
        storage = Storage(storage.pattern, storage.values.float())
    key = (name, dim % len(shape), storage.key, current().without)
    known = None if current().debug else _known.get(key)
    if known is not None:
        made: dict[str, Storage | torch.Tensor] = {"A": storage}
        for target, prepared in known:
            made[target] = prepared([made[source] for source, _ in prepared.sources])
        return SparseTensor(_stored(made["R"]))
    indices = copy_step(len(shape)).target.indices
    summed = (indices[dim],)
    sizes = dict(zip(indices, shape, strict=True))
    kept = tuple(index for index in indices if index not in summed)
    a, m, e, s = Access("A", indices), Access("m", kept), Access("E", indices), Access("s", kept)

    def on_pattern(of: Access, value: Expr) -> Expr:
        return Op("mul", (Op("present", (of,)), value))

    tensors: dict[str, Storage | torch.Tensor] = {"A": storage}
    shifted = Op("sub", (a, m))
    last = on_pattern(e, Op("div", (e, s)))
    if name == "log_softmax":
        last = on_pattern(a, Op("sub", (shifted, Op("log", (s,)))))
    steps = (
        Step(m, a, "max", summed),
        Step(e, on_pattern(a, Op("exp", (shifted,))), "sum", ()),
        Step(s, e, "sum", summed),
        Step(Access("R", indices), last, "sum", ()),
    )
    for step in steps:
        tensors[step.target.tensor] = run_stored(Task(step, tensors, sizes))
    _keep(key, steps, tensors, sizes)
    return SparseTensor(_stored(tensors["R"]))


def _stored(found: Storage | torch.Tensor) -> Storage:
    assert isinstance(found, Storage)
    return found


def _keep(
    key: Hashable,
    steps: Sequence[Step],
    tensors: Mapping[str, Storage | torch.Tensor],
    sizes: Mapping[str, int],
) -> None:
    """Remember the kernels of a call, unless some depend on how many rows are stored."""
    if isinstance(tensors["m"], Storage) or current().debug:
        return
    _known[key] = [
        (step.target.tensor, prepared_step(Task(step, tensors, sizes).narrowed())) for step in steps
    ]


# of all elements -------------------------------------------------------------------------------------


def _on_dense_copy(function: Any) -> Any:
    def run(input: SparseTensor, dim: int | None = None, dtype: torch.dtype | None = None) -> Any:
        return None if dim is None else densely(function, (input, dim), {"dtype": dtype})

    return run


for _function in (torch.softmax, torch.Tensor.softmax, torch.log_softmax, torch.Tensor.log_softmax):
    direct(_function, takes="dim dtype")(_on_dense_copy(_function))


# gradients -------------------------------------------------------------------------------------------


def _differentiable(
    input: SparseTensor, dim: int, *, dtype: torch.dtype | None = None, name: str
) -> SparseTensor:
    """As ``_softmax``, connected to its input."""
    pattern, values = input.storage.pattern, values_of(input)
    if dtype is not None:
        values = values.to(dtype)
    if is_transformed():
        return sparse_of(pattern, _composed(values, pattern, dim, name == "log_softmax"))
    found = _softmax(SparseTensor(Storage(pattern, values.detach())), dim, name=name)
    return connected_softmax(values, found, dim, name)


for _name in ("softmax", "log_softmax"):
    implements(getattr(aten, f"_sparse_{_name}"))(functools.partial(_softmax, name=_name))
    implements_differentiable(getattr(torch.sparse, _name))(functools.partial(_differentiable, name=_name))


def _composed(values: torch.Tensor, pattern: Pattern, dim: int, is_log: bool) -> torch.Tensor:
    """The values of a softmax over stored entries, composed of functions that ``torch.func`` knows."""
    groups = groups_of_pattern(pattern, reduced_dims(len(pattern.shape), dim))
    listed = values if groups.numbers is None else values[groups.numbers]
    shifted = listed - groups.reduce(listed.detach(), "amax")[groups.group]
    total = groups.sum(torch.exp(shifted))[groups.group]
    result = shifted - total.log() if is_log else torch.exp(shifted) / total
    if groups.numbers is None:
        return result
    return result.new_zeros(pattern.size).index_put((groups.numbers,), result)


def connected_softmax(values: torch.Tensor, found: SparseTensor, dim: int, name: str) -> SparseTensor:
    """``found``, the softmax of ``values`` on its own pattern, connected to them."""
    stored = found.storage
    return sparse_of(stored.pattern, apply(_Softmax, values, stored, dim, name == "log_softmax"))


class _Softmax(torch.autograd.Function):
    """The values of a softmax as a function of those of its input, which are all on one pattern."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, found: Storage, dim: int, is_log: bool) -> torch.Tensor:
        result = found.values.detach()
        ctx.save_for_backward(result)
        ctx.pattern, ctx.dim, ctx.is_log = found.pattern, dim, is_log
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (found,) = ctx.saved_tensors
        shares = found.exp() if ctx.is_log else found
        weighted = gradient if ctx.is_log else gradient * found
        means = apply(_Totals, weighted, ctx.pattern, ctx.dim)
        return weighted - shares * means, None, None, None


class _Totals(torch.autograd.Function):
    """For every entry the sum of all entries along ``dim``; which is its own adjoint."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, pattern: Pattern, dim: int) -> torch.Tensor:
        ctx.pattern, ctx.dim = pattern, dim
        indices = copy_step(len(pattern.shape)).target.indices
        summed = (indices[dim],)
        kept = tuple(index for index in indices if index not in summed)
        sizes = dict(zip(indices, pattern.shape, strict=True))
        a, s = Access("A", indices), Access("s", kept)
        tensors: dict[str, Storage | torch.Tensor] = {"A": Storage(pattern, values.detach().contiguous())}
        tensors["s"] = run_stored(Task(Step(s, a, "sum", summed), tensors, sizes))
        spread = Step(Access("R", indices), Op("mul", (Op("present", (a,)), s)), "sum", ())
        return _stored(run_stored(Task(spread, tensors, sizes))).values

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return apply(_Totals, gradient, ctx.pattern, ctx.dim), None, None
