"""Operators between a sparse tensor and NumPy's arrays and numbers, or SciPy's matrices.

    S @ array        array * S        np.float32(2) * S        S + matrix        np.sin(S)

An array becomes a dense tensor that shares its memory, a matrix of SciPy a sparse one, and torch computes.
NumPy asks ``__array_ufunc__``, whichever side the array is on. SciPy's operators convert the other operand to
an array first, and return NotImplemented only if NumPy finds nothing in it but an object: that is what
``__array__`` returns to them, and Python goes on to the reflected method here.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.compiler import is_dynamo_compiling

from scorch._src.devices import HOST
from scorch._src.tensor.create.check import from_numpy
from scorch._src.tensor.interop.torch_layouts import from_scipy, is_scipy
from scorch._src.tensor.registry import entry
from scorch._src.tensor.sparse_tensor import TENSORS, SparseTensor
from scorch._src.torch_internals import is_torch_function_enabled, len_torch_function_stack
from scorch.errors import ArgumentError, InPlaceError, ScorchError, UnsupportedError, kind_of

PLAIN = TENSORS | {int, float}

# NumPy's functions behind Python's operators, which take numbers on either side.
OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "divide": operator.truediv,
    "equal": operator.eq,
    "floor_divide": operator.floordiv,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "invert": operator.invert,
    "left_shift": operator.lshift,
    "less": operator.lt,
    "less_equal": operator.le,
    "matmul": operator.matmul,
    "multiply": operator.mul,
    "not_equal": operator.ne,
    "power": operator.pow,
    "remainder": operator.mod,
    "right_shift": operator.rshift,
    "subtract": operator.sub,
}
# The others have the same name in torch, except these.
RENAMED = {
    "conjugate": "conj",
    "degrees": "rad2deg",
    "fabs": "abs",
    "negative": "neg",
    "radians": "deg2rad",
    "rint": "round",
}


def as_operand(value: Any) -> Any:
    """Convert an array or matrix to a tensor, a NumPy number to one of Python, and nothing else."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return from_numpy("the array", value)
    if isinstance(value, (list, tuple)):
        return from_numpy("the list", np.asarray(value))
    return from_scipy(value) if is_scipy(value) else value


def array_ufunc(
    self: SparseTensor, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **kwargs: Any
) -> Any:
    """Compute the NumPy function ``ufunc`` of a sparse tensor with the equivalent PyTorch function."""
    name = ufunc.__name__
    function = OPERATORS.get(name) or getattr(torch, RENAMED.get(name, name), None)
    if method != "__call__" or function is None:
        called = name if method == "__call__" else f"{name}.{method}"
        raise UnsupportedError(
            f"numpy.{called} does not support sparse tensors; use a PyTorch function, or S.to_scipy()"
        )
    if kwargs:
        raise UnsupportedError(
            f"numpy.{name} with {', '.join(kwargs)}= does not support sparse tensors; use the PyTorch "
            "function"
        )
    operands = [as_operand(value) for value in inputs]
    if name not in OPERATORS:  # torch's other functions of two take no numbers
        operands = [
            value if isinstance(value, torch.Tensor) else torch.tensor(value, device=HOST)
            for value in operands
        ]
    if name == "matmul":
        operands = _of_one_dtype(operands)
    result = function(*operands)
    return result if out is None else _written(out[0], result, name)


def _of_one_dtype(operands: list[Any]) -> list[Any]:
    """Convert operands to their common dtype, as NumPy does; torch refuses to mix dtypes."""
    if not all(isinstance(value, torch.Tensor) for value in operands):
        return operands
    dtype = torch.result_type(*operands)
    return [value.to(dtype) for value in operands]


def _written(out: Any, computed: torch.Tensor, name: str) -> Any:
    """Write the result to the array, for ``array += S``."""
    if not isinstance(out, np.ndarray):
        raise UnsupportedError(f"numpy.{name} expected out to be a NumPy array, but got {kind_of(out)}")
    if not out.flags.writeable:
        raise ArgumentError(f"numpy.{name} cannot write to a read-only array")
    if tuple(computed.shape) != out.shape:
        raise InPlaceError(
            f"numpy.{name} returns shape {tuple(computed.shape)}, but out has shape {out.shape}"
        )
    result = computed.to_dense() if isinstance(computed, SparseTensor) else computed
    values = result.detach().numpy()
    if not np.can_cast(values.dtype, out.dtype, "same_kind"):
        raise InPlaceError(
            f"numpy.{name} returns {values.dtype}, which cannot be cast to the dtype of out, {out.dtype}"
        )
    out[...] = values
    return out


setattr(SparseTensor, "__array_ufunc__", array_ufunc)  # noqa: B010 - torch does not declare it


# SciPy -----------------------------------------------------------------------------------------------


def _with_matrix_on_the_right(name: str) -> Callable[[SparseTensor, Any], Any]:
    """Return the method for ``S + matrix``: SciPy is tried only where torch refuses the other operand.

    With a number or a tensor of ours or torch's own it bypasses torch, which would call the same function.
    """
    plain, run = getattr(torch.Tensor, name), SparseTensor.__torch_function__
    registered = entry(plain)

    def method(self: SparseTensor, other: Any) -> Any:
        kind = type(other)
        is_plain = kind in PLAIN and type(self) is SparseTensor and not is_dynamo_compiling()
        if is_plain and is_torch_function_enabled() and not len_torch_function_stack():
            if kind in TENSORS and registered.repeat is not None:
                try:
                    known = None if registered.quick is None else registered.quick(self, other)
                    if known is None:
                        known = registered.repeat(self, other)
                except (ScorchError, MemoryError):  # the usual way raises it, in words about this call
                    known = None
                if known is not None:
                    return known
            try:
                return run(plain, (), (self, other))
            except TypeError:
                return NotImplemented
        result = plain(self, other)
        if result is NotImplemented and is_scipy(other):
            _refuse_product(name, other, "S * {}")
            operands = [self, from_scipy(other)]
            return plain(*(_of_one_dtype(operands) if name == "__matmul__" else operands))
        return result

    method.__name__, method.__qualname__ = name, f"SparseTensor.{name}"
    return method


def _refuse_product(name: str, other: Any, text: str) -> None:
    """Refuse ``*`` with SciPy's older classes, whose ``*`` is the matrix product."""
    if name in ("__mul__", "__rmul__") and not isinstance(other, sys.modules["scipy.sparse"].sparray):
        kind = type(other).__name__
        raise UnsupportedError(
            f"{text.format(kind)} means the elementwise product in PyTorch and the matrix product in SciPy; "
            f"use {text.format('scorch.from_scipy(matrix)')}, or {text.replace('*', '@').format('matrix')}"
        )


def _with_matrix_on_the_left(name: str) -> Callable[[SparseTensor, Any], Any]:
    """Return the method for ``matrix + S``; a dense tensor on the left uses its own method."""
    plain, on_the_left = getattr(torch.Tensor, name), getattr(torch.Tensor, f"__{name[3:]}")

    def method(self: SparseTensor, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return on_the_left(other, self)
        if not is_scipy(other):
            return plain(self, other)
        _refuse_product(name, other, "{} * S")
        operands = [from_scipy(other), self]
        return on_the_left(*(_of_one_dtype(operands) if name == "__rmatmul__" else operands))

    method.__name__, method.__qualname__ = name, f"SparseTensor.{name}"
    return method


def _is_operator_of_scipy(frame: Any) -> bool:
    """Whether the outermost of the frames of ``scipy.sparse`` from here on is a Python operator."""
    name = ""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("scipy.sparse"):
        name, frame = frame.f_code.co_name, frame.f_back
    return name in _SCIPY_OPERATORS


def array(self: SparseTensor, dtype: Any = None, copy: bool | None = None) -> Any:
    """Refuse to become an array; to an operator of SciPy be an object that NumPy knows nothing about."""
    if not _is_operator_of_scipy(sys._getframe(1)):
        return self.numpy()  # says what to do instead
    unknown = np.empty((), dtype=object)
    unknown[()] = self
    return unknown


_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_SCIPY_OPERATORS = {"__mul__", "__truediv__", "__div__", "__matmul__", *_COMPARISONS}
for _name in ("__add__", "__sub__", "__mul__", "__truediv__", "__matmul__", *_COMPARISONS):
    setattr(SparseTensor, _name, _with_matrix_on_the_right(_name))
for _name in ("__radd__", "__rsub__", "__rmul__", "__rtruediv__", "__rmatmul__"):
    setattr(SparseTensor, _name, _with_matrix_on_the_left(_name))
setattr(SparseTensor, "__array__", array)  # noqa: B010 - as above
