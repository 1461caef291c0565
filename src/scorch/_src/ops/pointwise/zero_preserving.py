"""Elementwise functions that preserve zeros, computed on the stored values.

torch computes them, so that dtypes and numbers are its own, and it differentiates them by its own formulas,
of the values. Whether a function preserves zeros may depend on its options (``clamp(S, min=1)`` does not);
one that does not takes the general rule (``ops.pointwise.elementwise``). So do those that take more than
elements, or return more than one tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.devices import HOST
from scorch._src.ops.fallback import run_densely
from scorch._src.ops.pointwise.arithmetic import run_generally
from scorch._src.ops.pointwise.elementwise import map_elements
from scorch._src.tensor.autograd import map_values
from scorch._src.tensor.create.check import refuse_freed
from scorch._src.tensor.registry import entry, implements, look_up
from scorch._src.tensor.sparse_tensor import SparseTensor, with_values

aten = torch.ops.aten
FUNCTIONS = (
    "__pow__ abs asin asinh atan atanh ceil celu clamp clip copysign deg2rad elu erf erfinv expm1 "
    "float_power floor fmod frac gelu hardshrink hardsigmoid hardswish hardtanh i1 leaky_relu log1p "
    "logit mish nan_to_num neg pow rad2deg relu relu6 remainder round rsub selu sgn sigmoid sign silu "
    "sin sinc sinh softplus softshrink softsign special_i1 sqrt square tan tanh tanhshrink threshold "
    "trunc xlogy "
)

ROUTINES = {"abs": "abs", "neg": "neg", "relu": "relu"}  # exact, so that backends may compute them


def _preserves_zero(
    function: Callable[..., Any], dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    with torch.no_grad():
        fill = function(torch.zeros(1, dtype=dtype, device=HOST), *args, **kwargs)
    return isinstance(fill, torch.Tensor) and not bool(fill.count_nonzero())


def _make_handler(function: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """Return ``function`` of the stored values, where it preserves zeros and has no other tensors.

    The second is whether it always preserves them, without further arguments.
    """
    try:
        is_always_zero = _preserves_zero(function, torch.float64, (), {})
    except (RuntimeError, TypeError):  # it needs more arguments
        is_always_zero = False

    def apply(input: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or not is_always_zero:
            is_unary = isinstance(input, SparseTensor) and not any(
                isinstance(value, torch.Tensor) for value in (*args, *kwargs.values())
            )
            is_functional = kwargs.get("out") is None and not kwargs.get("inplace")
            if not is_unary or not is_functional or not _preserves_zero(function, input.dtype, args, kwargs):
                refuse_freed(input, *args, *kwargs.values())
                return run_generally(function, input, *args, **kwargs)
        return map_values(input, function, *args, **kwargs)

    return apply, is_always_zero


for _name in FUNCTIONS.split():
    for _home in (torch, torch.Tensor, F):
        _function = getattr(_home, _name, None)
        if callable(_function) and look_up(_function).run is None:
            _handler, _is_always_zero = _make_handler(_function)
            implements(_function, differentiable=True)(_handler)
            entry(_function).checks_operands = True
            entry(_function).maps_values = int(_is_always_zero)
            entry(_function).routine = ROUTINES.get(_name, "")


# with other tensors, or several results --------------------------------------------------------------


@implements(aten.isin.Tensor_Tensor)
def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """Test whether each element is one of ``test_elements``."""
    if not isinstance(elements, SparseTensor):
        func = aten.isin.Tensor_Tensor
        return run_densely(
            func, (elements, test_elements), {"assume_unique": assume_unique, "invert": invert}
        )
    candidates = test_elements.to_dense() if isinstance(test_elements, SparseTensor) else test_elements
    return map_elements("isin", elements, lambda values: torch.isin(values, candidates, invert=invert))


@implements(aten.isin.Tensor_Scalar)
def isin_number(
    elements: SparseTensor, test_element: Any, *, assume_unique: bool = False, invert: bool = False
) -> Any:
    return map_elements("isin", elements, lambda values: torch.isin(values, test_element, invert=invert))


@implements(aten.bucketize.Tensor)
def bucketize(self: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    """Return the number of the bucket that each element falls in."""
    bounds = boundaries.to_dense() if isinstance(boundaries, SparseTensor) else boundaries
    if not isinstance(self, SparseTensor):
        return torch.bucketize(self, bounds, out_int32=out_int32, right=right)
    return map_elements(
        "bucketize", self, lambda values: torch.bucketize(values, bounds, out_int32=out_int32, right=right)
    )


def _is_dense(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, SparseTensor)


@implements(aten.searchsorted.Tensor)
def searchsorted(sorted_sequence: Any, self: Any, **options: Any) -> Any:
    """Return where each element would be inserted in a sorted list; one list per row is computed densely."""
    if isinstance(sorted_sequence, SparseTensor) or sorted_sequence.dim() != 1 or _is_dense(self):
        return run_densely(aten.searchsorted.Tensor, (sorted_sequence, self), options)
    return map_elements(
        "searchsorted", self, lambda values: aten.searchsorted.Tensor(sorted_sequence, values, **options)
    )


@implements(aten.frexp.Tensor)
def frexp(self: SparseTensor) -> Any:
    """Return mantissa and exponent, both zero at zero."""
    mantissa, exponent = torch.frexp(self.storage.values)
    return with_values(self, mantissa), with_values(self, exponent)
