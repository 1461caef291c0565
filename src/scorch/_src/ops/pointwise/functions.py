"""Functions of each element that are computed on the stored values alone: those that are zero for zero.

torch computes them, so that dtypes and numbers are its own, and it differentiates them by its own formulas,
of the values. Whether a function is zero for zero may depend on its options (``clamp(S, min=1)`` is not); one
that is not goes the way of all functions (``ops.pointwise.elementwise``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.ops.pointwise.arithmetic import general, with_learned
from scorch._src.tensor.autograd import values_of
from scorch._src.tensor.registry import implements, look_up
from scorch._src.tensor.sparse_tensor import SparseTensor

FUNCTIONS = (
    "__pow__ abs asin asinh atan atanh ceil celu clamp clip copysign deg2rad elu erf erfinv expm1 "
    "float_power floor fmod frac gelu hardshrink hardsigmoid hardswish hardtanh i1 leaky_relu log1p "
    "logit mish nan_to_num neg pow rad2deg relu relu6 remainder round rsub selu sgn sigmoid sign silu "
    "sin sinc sinh softplus softshrink softsign special_i1 sqrt square tan tanh tanhshrink threshold "
    "trunc xlogy "
)


def _is_zero_for_zero(
    function: Callable[..., Any], dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    with torch.no_grad():
        fill = function(torch.zeros(1, dtype=dtype), *args, **kwargs)
    return isinstance(fill, torch.Tensor) and not bool(fill.count_nonzero())


def _on_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of the stored values, where it is zero for zero and has no other tensors."""
    try:
        is_always_zero = _is_zero_for_zero(function, torch.float64, (), {})
    except (RuntimeError, TypeError):  # it takes more
        is_always_zero = False

    def apply(input: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or not is_always_zero:
            is_alone = isinstance(input, SparseTensor) and not any(
                isinstance(value, torch.Tensor) for value in (*args, *kwargs.values())
            )
            is_new = kwargs.get("out") is None and not kwargs.get("inplace")
            if not is_alone or not is_new or not _is_zero_for_zero(function, input.dtype, args, kwargs):
                return general(function, input, *args, **kwargs)
        return with_learned(input, function(values_of(input), *args, **kwargs))

    return apply


for _name in FUNCTIONS.split():
    for _home in (torch, torch.Tensor, F):
        _function = getattr(_home, _name, None)
        if callable(_function) and look_up(_function).run is None:
            implements(_function, differentiable=True)(_on_values(_function))
