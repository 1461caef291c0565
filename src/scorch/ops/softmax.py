"""``torch.sparse.softmax`` and ``log_softmax``: over stored entries, as if all others were minus infinity.

For a matrix and ``dim=1`` these are the steps, the first and third over stored entries only:

    m[i] = max(j, A[i,j])    E[i,j] = exp(A[i,j] - m[i])    s[i] = sum(j, E[i,j])    R[i,j] = E[i,j] / s[i]

``E`` and ``R`` have the pattern of ``A``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import torch

from scorch.compiler.plan import Step
from scorch.errors import OperandError, ShapeError
from scorch.notation.nodes import Access, Expr, Op
from scorch.settings import current
from scorch.tensor.dispatch import implements_operator
from scorch.tensor.prepared import Prepared
from scorch.tensor.run import Task, copy_step, prepared_step, run_stored
from scorch.tensor.sparse_tensor import SparseTensor
from scorch.tensor.storage import Storage

aten = torch.ops.aten
MOST_CALLS = 1024
_known: dict[Hashable, list[tuple[str, Prepared]]] = {}  # the kernels of calls made before


@implements_operator(aten._sparse_softmax)
def softmax(self: SparseTensor, dim: int, half_to_float: bool = False) -> SparseTensor:
    """``exp(A)`` on the pattern of A, divided by its sums along ``dim``."""
    return _softmax(self, dim, half_to_float, "softmax")


@implements_operator(aten._sparse_log_softmax)
def log_softmax(self: SparseTensor, dim: int, half_to_float: bool = False) -> SparseTensor:
    """The logarithm of ``softmax`` on the pattern of A."""
    return _softmax(self, dim, half_to_float, "log_softmax")


def _softmax(A: SparseTensor, dim: int, half_to_float: bool, name: str) -> SparseTensor:
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
    if len(_known) >= MOST_CALLS:
        _known.clear()
    _known[key] = [
        (step.target.tensor, prepared_step(Task(step, tensors, sizes).narrowed())) for step in steps
    ]
