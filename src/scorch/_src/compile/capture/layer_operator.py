"""The operator of graphs for sparse linear layers in inference.

``scorch::call`` describes any call as text and rebuilds its arguments, which takes longer than the product of
a layer and a single row. ``scorch::linear`` takes what a layer takes, and repeats its last call
(``ops/products/repeat_layer.py``). It has no derivative: where gradients or autocast are on, or a transform
of ``torch.func`` runs, layers are traced as ``torch.nn.functional.linear``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from scorch._src.backends.base import served_devices
from scorch._src.ops.products.layer import apply_layer
from scorch._src.ops.products.repeat_layer import LayerCall
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.flatten import pattern_of, read_spelled, spelled
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import (
    EnableTorchFunction,
    interpreter_stack_depth,
    is_any_autocast_enabled,
)

_STORED = (torch.bfloat16, torch.int8)  # dtypes of values that a layer with float32 inputs may have
_library = torch.library.Library("scorch", "FRAGMENT")
_library.define(
    "linear(Tensor input, Tensor values, Tensor[] index, str format, SymInt out_features, Tensor? bias, "
    "Tensor? scales, str? activation, Tensor? residual) -> Tensor"  # inductor names arguments with defaults
)


def _is_watched() -> bool:
    """Check for a transform of ``torch.func``, forward-mode derivatives and autocast."""
    return interpreter_stack_depth() > 0 or is_any_autocast_enabled() or forward_ad._current_level >= 0


# It is called while a graph is traced, not traced itself: not all versions of torch know what it calls.
_is_watched._dynamo_marked_constant = True  # type: ignore[attr-defined]


def trace_layer(
    input: torch.Tensor,
    pattern: Pattern,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    scales: torch.Tensor | None,
    activation: str | None,
    residual: torch.Tensor | None,
) -> torch.Tensor | None:
    """Add a layer to the graph that is traced; None where it has to be traced call by call.

    ``torch.compile`` traces these lines.
    """
    if _is_watched():
        return None
    if isinstance(input, SparseTensor) or not input.dim() or not input.dtype.is_floating_point:
        return None
    if values.dtype != input.dtype and (input.dtype != torch.float32 or values.dtype not in _STORED):
        return None
    if residual is not None and residual.shape != (*input.shape[:-1], pattern.shape[0]):
        return None
    for other in (bias, scales, residual):
        if other is not None and other.dtype != input.dtype:
            return None
    if torch.is_grad_enabled():
        for tensor in (input, values, bias, residual):
            if tensor is not None and tensor.requires_grad:
                return None
    pairs = zip(pattern.pos, pattern.crd, strict=True)
    index = [array for pair in pairs for array in pair if array is not None]
    arguments = (input, values, index, spelled(pattern.format), pattern.shape[0])
    return torch.ops.scorch.linear(*arguments, bias, scales, activation, residual)  # type: ignore[no-any-return]


def _linear(
    input: torch.Tensor,
    values: torch.Tensor,
    index: Sequence[torch.Tensor],
    format: str,
    out_features: int,
    bias: torch.Tensor | None,
    scales: torch.Tensor | None,
    activation: str | None,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    pattern = pattern_of(read_spelled(format), (out_features, input.shape[-1]), index)
    follows = (bias, scales, activation, residual)
    key = "layer", activation, bias is None, residual is None
    last: LayerCall | None = pattern.structures.get(key)
    output = None if last is None else last.repeat(input, pattern, values, *follows)
    if output is not None:
        return output
    call = (input, pattern, bias, activation, residual)
    if last is None or not last.covers(*call):
        pattern.structures[key] = LayerCall(*call)
    with torch.no_grad(), EnableTorchFunction():
        weight = SparseTensor(Storage(pattern, values.detach()))
        weight.parameter = values
        return apply_layer(input, weight, values, *follows).contiguous()  # type: ignore[no-any-return]


def _fake_linear(
    input: torch.Tensor, values: Any, index: Any, format: Any, out_features: Any, *_: Any
) -> torch.Tensor:
    return input.new_empty(*input.shape[:-1], out_features)


for _device in served_devices():
    _library.impl("linear", _linear, _device.upper())
torch.library.register_fake("scorch::linear", _fake_linear, lib=_library)
