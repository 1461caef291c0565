"""Functions of each element that are zero for zero, and losses of two sparse tensors, that are learned.

They act on the stored values, so that torch's own formulas are applied to those alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.tensor.autograd import by_formula, sparse_of, values_of
from scorch._src.tensor.registry import implements_differentiable, look_up
from scorch._src.tensor.sparse_tensor import SparseTensor

# fmt: off
FUNCTIONS = [
    "celu", "clamp", "clip", "elu", "erf", "erfinv", "fmod", "gelu", "hardshrink", "hardsigmoid", "hardswish",
    "hardtanh", "i1", "leaky_relu", "logit", "mish", "nan_to_num", "pow", "float_power", "relu6", "remainder",
    "rsub", "selu", "sigmoid", "silu", "sinc", "softplus", "softshrink", "softsign", "special_i1",
    "tanhshrink", "threshold", "xlogy", "__pow__", "copysign",
]
# fmt: on


def _on_values(function: Callable[..., Any]) -> Callable[..., Any]:
    def handler(input: Any, *args: Any, **kwargs: Any) -> Any:
        others = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        is_plain = isinstance(input, SparseTensor) and not others
        if is_plain and kwargs.get("out") is None and not kwargs.get("inplace"):
            with torch.no_grad():
                fill = function(torch.zeros(1, dtype=input.dtype, device="cpu"), *args, **kwargs)
            if not bool(fill.count_nonzero()):
                values = function(values_of(input), *args, **kwargs)
                return sparse_of(input.storage.pattern, values)
        return by_formula(function, (input, *args), kwargs)

    return handler


for _name in FUNCTIONS:
    for _home in (torch, torch.Tensor, F):
        _function = getattr(_home, _name, None)
        if callable(_function) and look_up(_function).run_differentiable is None:
            implements_differentiable(_function)(_on_values(_function))


# losses ----------------------------------------------------------------------------------------------


def _reduced(loss: Any, reduction: str) -> Any:
    return loss if reduction == "none" else loss.sum() if reduction == "sum" else loss.mean()


def _loss(function: Callable[..., Any], **defaults: Any) -> None:
    """A loss that is a function of the difference, zero where both are."""

    def handler(input: Any, target: Any, *args: Any, reduction: str = "mean", **kwargs: Any) -> Any:
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        is_sparse = isinstance(input, SparseTensor) and isinstance(target, SparseTensor)
        options = {name: kwargs.get(name, value) for name, value in defaults.items()}
        is_plain = not args and set(kwargs) <= set(defaults) and reduction in ("none", "sum", "mean")
        if not is_sparse or not is_plain or input.shape != target.shape or input.dtype != target.dtype:
            return by_formula(function, (input, target, *args), {"reduction": reduction, **kwargs})
        distance = input - target
        values = values_of(distance)
        lost = function(values, torch.zeros_like(values), reduction="none", **options)
        return _reduced(sparse_of(distance.storage.pattern, lost), reduction)

    implements_differentiable(function)(handler)


_loss(F.mse_loss)
_loss(F.l1_loss)
_loss(F.smooth_l1_loss, beta=1.0)
_loss(F.huber_loss, delta=1.0)
