"""``torch.sparse.softmax`` and ``log_softmax``: over stored entries, as if all others were minus infinity.

For a matrix and ``dim=1`` these are the steps, the first and third over stored entries only:

    m[i] = max(j, A[i,j])    E[i,j] = exp(A[i,j] - m[i])    s[i] = sum(j, E[i,j])    R[i,j] = E[i,j] / s[i]

``E`` and ``R`` have the pattern of ``A``.
"""

from __future__ import annotations

import torch

from scorch.compiler.plan import Step
from scorch.errors import OperandError, ShapeError
from scorch.notation.nodes import Access, Expr, Op
from scorch.tensor.dispatch import implements_operator
from scorch.tensor.run import copy_step, run_stored
from scorch.tensor.sparse_tensor import SparseTensor
from scorch.tensor.storage import Storage

aten = torch.ops.aten


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
    for step in (
        Step(m, a, "max", summed),
        Step(e, on_pattern(a, Op("exp", (shifted,))), "sum", ()),
        Step(s, e, "sum", summed),
        Step(Access("R", indices), last, "sum", ()),
    ):
        tensors[step.target.tensor] = run_stored(step, tensors, sizes)
    found = tensors["R"]
    assert isinstance(found, Storage)
    return SparseTensor(found)
