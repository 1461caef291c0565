"""The names of ``torch.Tensor`` and ``SparseTensor`` on sharded tensors.

Each of them is a rule of ``calls`` or an error that says what to do instead: no name that users of tensors
try ends in an error of Python's own, and none gathers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from scorch._src.distributed.calls import call, missing_attribute, refusal
from scorch._src.tensor.sparse_tensor import SparseTensor

# Operators of Python beside those that ``RowSharded`` defines, and whether it is their second operand.
OPERATORS = {
    "__rsub__": (torch.sub, True),
    "__rtruediv__": (torch.div, True),
    "__floordiv__": (torch.floor_divide, False),
    "__rfloordiv__": (torch.floor_divide, True),
    "__mod__": (torch.remainder, False),
    "__rmod__": (torch.remainder, True),
    "__rpow__": (torch.pow, True),
    "__and__": (torch.bitwise_and, False),
    "__rand__": (torch.bitwise_and, True),
    "__or__": (torch.bitwise_or, False),
    "__ror__": (torch.bitwise_or, True),
    "__xor__": (torch.bitwise_xor, False),
    "__rxor__": (torch.bitwise_xor, True),
    "__eq__": (torch.eq, False),
    "__ne__": (torch.ne, False),
    "__lt__": (torch.lt, False),
    "__le__": (torch.le, False),
    "__gt__": (torch.gt, False),
    "__ge__": (torch.ge, False),
    "__invert__": (torch.bitwise_not, False),
}
REFUSED = {
    "__getitem__": "A[...]",
    "__setitem__": "A[...] = x",
    "__iter__": "iteration",
    "__contains__": "x in A",
    "__float__": "float(A)",
    "__int__": "int(A)",
    "__array__": "numpy.asarray(A)",
}

# Attributes of the local part that say of what kind the whole is.
ABOUT_KIND = {
    "element_size",
    "get_device",
    "grad_fn",
    "is_complex",
    "is_floating_point",
    "itemsize",
    "layout",
}


class TensorNames:
    """How a sharded tensor responds to names and operators that it does not define."""

    local: SparseTensor

    if not TYPE_CHECKING:  # names that this code uses are checked

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            owner = torch.Tensor if hasattr(torch.Tensor, name) else SparseTensor
            if not hasattr(owner, name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            member = getattr(owner, name)
            if name in ABOUT_KIND or (name.startswith("is_") and not callable(member)):
                return getattr(self.local, name)
            if not callable(member):
                raise missing_attribute(name)
            return _bound(member, self)

    @property
    def _is_param(self) -> bool:
        """Whether this is a parameter; ``torch.nn.Parameter`` sets it, but modules would not register one."""
        return False

    @_is_param.setter
    def _is_param(self, value: bool) -> None:
        raise refusal("nn.Parameter(A)")

    __hash__ = object.__hash__
    __array_ufunc__ = None  # numbers of NumPy leave operators to the tensor


def _bound(member: Any, tensor: Any) -> Callable[..., Any]:
    """Return a method of ``torch.Tensor`` or ``SparseTensor`` for a sharded tensor."""

    @functools.wraps(member)
    def method(*args: Any, **kwargs: Any) -> Any:
        return call(member, (tensor, *args), kwargs)

    return method


def _operator(function: Any, is_second: bool) -> Callable[..., Any]:
    def operator(self: Any, *others: Any) -> Any:
        return call(function, (*others, self) if is_second else (self, *others), {})

    return operator


def _refused(name: str) -> Callable[..., Any]:
    def operator(self: Any, *others: Any, **options: Any) -> Any:
        raise refusal(name)

    return operator


for _name, (_function, _is_second) in OPERATORS.items():
    setattr(TensorNames, _name, _operator(_function, _is_second))
for _name, _shown in REFUSED.items():
    setattr(TensorNames, _name, _refused(_shown))
