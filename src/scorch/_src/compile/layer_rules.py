"""Rules of sparse layers: ``relu(linear(x)) + x`` becomes one product that finishes each row at once.

A layer is a product with a sparse weight, its bias, an activation and a residual, in this order; or a
convolution, a batch norm in evaluation mode, a residual and an activation. Each is a recipe of its own;
``layer_plan`` finds out which of them are needed only for the last, and calls the routine that computes all.
Where gradients are tracked, layers are not recorded.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.compile.layer_plan import PRODUCT
from scorch._src.compile.lazy_tensor import LAZY_TYPES, LazyTensor, Recipe, Value
from scorch._src.compile.recorder import PLAIN, RecordedCall, Recorder, recording_rule
from scorch._src.grad_state import is_differentiable
from scorch._src.notation.nodes import Access
from scorch._src.ops.products.activations import ACTIVATIONS
from scorch._src.ops.products.convolution import apply_convolution, find_fixed_norm, windows_of
from scorch._src.ops.products.layer import apply_layer
from scorch._src.ops.products.linear import can_multiply_batch
from scorch._src.tensor.sparse_tensor import SparseTensor

TRACKED = "gradients are tracked, which need its result before the activation"
OPERANDS = ("x", "W", "values", "bias", "scales", "residual")  # their names among the parents of a recipe
LINEAR, ACTIVATION, RESIDUAL = "linear", "activation", "residual"
CONVOLUTION, NORMED, ADDED, ACTIVATED = "convolution", "normed", "added", "activated"


def find_layer(tensor: Any) -> Value | None:
    """Return the layer that a tensor is the output of, if it is not computed yet."""
    value: Value | None = tensor._value if type(tensor) is LazyTensor else None
    return value if value is not None and value.recipe.is_layer and value.result is None else None


def _has_sparse_weight(input: Any, weight: Any, *_: Any, **__: Any) -> bool:
    return isinstance(weight, SparseTensor) and not isinstance(input, SparseTensor)


def _follows_layer(input: Any, *_: Any, **__: Any) -> bool:
    return find_layer(input) is not None


@recording_rule(F.linear, applies=_has_sparse_weight)
def linear(recorder: Recorder, input: Any, weight: Any, bias: Any = None) -> Any:
    recorded = layer(recorder, input, weight, None, bias, None, None, None)
    if not isinstance(recorded, Recipe):
        return recorded
    return [(recorded, (apply_layer, (input, weight, None, bias, None, None, None), {}))]


@recording_rule(apply_layer)
def layer(
    recorder: Recorder,
    input: Any,
    weight: Any,
    values: Any,
    bias: Any,
    scales: Any,
    activation: Any,
    residual: Any,
) -> Recipe | str | None:
    input, weight, residual = (_compute(recorder, tensor) for tensor in (input, weight, residual))
    operands = (input, weight, values, bias, scales, residual)
    tensors = {name: tensor for name, tensor in zip(OPERANDS, operands, strict=True) if tensor is not None}
    if is_differentiable(*tensors.values()):
        return TRACKED
    if not can_multiply_batch(input, weight, bias, scales, residual):
        return None
    kind = RESIDUAL if residual is not None else LINEAR if activation is None else ACTIVATION
    parents = {name: recorder.source(tensor).number for name, tensor in tensors.items()}
    pattern = weight.storage.pattern
    shape = (*input.shape[:-1], pattern.shape[0])
    return _make_recipe(recorder, shape, input.dtype, recorder.pattern(pattern), parents, kind)


@recording_rule(apply_convolution)
def convolution(recorder: Recorder, images: Any, weight: Any, bias: Any, *numbers: Any) -> Recipe | None:
    images = _compute(recorder, images)
    if type(images) not in PLAIN or images.layout is not torch.strided:
        return None
    operands = zip(("x", "W", "bias"), (images, weight, bias), strict=True)
    parents = {name: recorder.source(tensor).number for name, tensor in operands if tensor is not None}
    pattern = weight.storage.pattern
    shape = (images.shape[0], pattern.shape[0], *windows_of(numbers).out(images.shape[2:]))
    return _make_recipe(recorder, shape, images.dtype, recorder.pattern(pattern), parents, CONVOLUTION)


@recording_rule(F.batch_norm, applies=_follows_layer)
def batch_norm(
    recorder: Recorder,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> list[RecordedCall] | str | None:
    """Record a batch norm in evaluation mode that follows a convolution."""
    value = find_layer(input)
    if value is None or training or not _can_follow(recorder, value, CONVOLUTION):
        return None
    recipe, statistics = value.recipe, (running_mean, running_var, weight, bias)
    if find_fixed_norm(recipe.shape[1], recipe.dtype, *statistics, eps) is None:
        return None
    if is_differentiable(*[tensor for tensor in statistics if tensor is not None]):
        return TRACKED
    names = zip(("mean", "variance", "weight", "bias"), statistics, strict=True)
    others = {name: recorder.source(tensor).number for name, tensor in names if tensor is not None}
    call: Any = F.batch_norm, (input, *statistics, False, momentum, eps), {}
    return [(_follow(recorder, value, NORMED, others), call)]


def record_activation(recorder: Recorder, input: Any, name: str) -> list[RecordedCall] | None:
    """Record an activation that follows a layer; None if it is none that layers are fused with."""
    value = find_layer(input)
    if value is None or name not in ACTIVATIONS:
        return None
    if not _can_follow(recorder, value, LINEAR, CONVOLUTION, NORMED, ADDED):
        return None
    recipe = _follow(recorder, value, ACTIVATION if value.recipe.kind == LINEAR else ACTIVATED, {})
    return [(recipe, (ACTIVATIONS[name], (input,), {}))]


def record_residual(
    recorder: Recorder, input: Any, other: Any, in_place: bool = False
) -> list[RecordedCall] | None:
    """Record the sum of a layer's output, which is ``input`` itself if ``in_place``, and a tensor like it."""
    for product, added in ((input, other),) if in_place else ((input, other), (other, input)):
        value = find_layer(product)
        if value is None or added is product:
            continue
        if not _can_follow(recorder, value, LINEAR, ACTIVATION, CONVOLUTION, NORMED):
            continue
        residual = _compute(recorder, added)
        if value.result is not None or not _is_residual(residual, value):
            return None
        kind = ADDED if value.recipe.kind in (CONVOLUTION, NORMED) else RESIDUAL
        recipe = _follow(recorder, value, kind, {"residual": recorder.source(residual).number})
        return [(recipe, (torch.add, (product, added), {}))]
    return None


def _is_residual(residual: Any, value: Value) -> bool:
    """Whether a routine can add a tensor to the output of a layer."""
    if type(residual) not in PLAIN or residual.layout is not torch.strided or is_differentiable(residual):
        return False
    recipe = value.recipe
    wanted = recipe.shape, recipe.dtype, value.device
    return (tuple(residual.shape), residual.dtype, residual.device) == wanted


@recording_rule(F.gelu, applies=_follows_layer)
def gelu(recorder: Recorder, input: Any, *, approximate: str = "none") -> list[RecordedCall] | None:
    name = {"none": "gelu", "tanh": "gelu_tanh"}.get(approximate)
    return None if name is None else record_activation(recorder, input, name)


@recording_rule(F.silu, applies=_follows_layer)
def silu(recorder: Recorder, input: Any) -> list[RecordedCall] | None:
    return record_activation(recorder, input, "silu")


def _compute(recorder: Recorder, tensor: Any) -> Any:
    return recorder.materialize_value(tensor._value) if type(tensor) in LAZY_TYPES else tensor


def _can_follow(recorder: Recorder, value: Value, *kinds: str) -> bool:
    recipe = value.recipe
    is_own = value.recorder is recorder and recipe.is_grad_enabled == torch.is_grad_enabled()
    return is_own and recipe.kind in kinds


def _follow(recorder: Recorder, value: Value, kind: str, others: dict[str, int]) -> Recipe:
    recipe = value.recipe
    parents = {PRODUCT: value.number, **others}
    return _make_recipe(recorder, recipe.shape, recipe.dtype, recipe.pattern_number, parents, kind)


def _make_recipe(
    recorder: Recorder,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    pattern_number: int,
    parents: dict[str, int],
    kind: str,
) -> Recipe:
    access = Access(recorder.fresh("T"), ())
    is_grad_enabled = torch.is_grad_enabled()
    return Recipe(
        access, shape, dtype, False, pattern_number, (), {}, parents, {}, is_grad_enabled, False, kind
    )
