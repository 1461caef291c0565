"""The operators of graphs for sparse linear layers and convolutions in inference.

``scorch::call`` describes any call as text and rebuilds its arguments, which takes longer than the product of
a layer and a single row. ``scorch::linear`` takes what a layer takes, and repeats its last call
(``ops/products/repeat_layer.py``). It has no derivative: where gradients or autocast are on, or a transform
of ``torch.func`` runs, layers are traced as ``torch.nn.functional.linear``. ``scorch::convolution`` is the
same for convolutions: they convolve with a dense weight elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from scorch._src.backends.base import served_devices
from scorch._src.backends.by_torch.convolutions import Windows
from scorch._src.grad_state import is_transformed
from scorch._src.ops.products.convolution import convolve, numbers_of, windows_of
from scorch._src.ops.products.layer import apply_layer
from scorch._src.ops.products.linear import CSR
from scorch._src.ops.products.repeat_layer import LayerCall
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.flatten import pattern_of, read_spelled, spelled
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import EnableTorchFunction, any_requires_grad, is_any_autocast_enabled
from scorch.errors import UnsupportedError

_STORED = (torch.bfloat16, torch.int8)  # dtypes of values that a layer with float32 inputs may have
_library = torch.library.Library("scorch", "FRAGMENT")
_library.define(
    "linear(Tensor input, Tensor values, Tensor[] index, str format, SymInt out_features, Tensor? bias, "
    "Tensor? scales, str? activation, Tensor? residual) -> Tensor"  # inductor names arguments with defaults
)
_library.define(
    "convolution(Tensor input, Tensor values, Tensor[] index, SymInt kernels, Tensor? bias, int[] windows)"
    " -> Tensor"
)


def _is_tracked_or_cast() -> bool:
    """Whether a transform, forward mode or autocast is on.

    ``torch.compile`` has entered those of the traced program and guards on those around it; older versions
    cannot trace the questions.
    """
    return is_transformed() or forward_ad._current_level >= 0 or is_any_autocast_enabled()


def _may_need_gradients() -> bool:
    """Whether gradients are on, or may be when an exported program is called; see above."""
    return torch.is_grad_enabled() or torch.compiler.is_exporting()


for _question in (_is_tracked_or_cast, _may_need_gradients):
    # what torch.compiler.assume_constant_result sets, whose import takes long
    _question._dynamo_marked_constant = True  # type: ignore[attr-defined]


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
    if _is_tracked_or_cast():
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
    if _needs_gradients((input, values, bias, residual)):
        return None
    arguments = (input, values, _arrays_of(pattern), spelled(pattern.format), pattern.shape[0])
    return torch.ops.scorch.linear(*arguments, bias, scales, activation, residual)  # type: ignore[no-any-return]


def trace_convolution(
    images: torch.Tensor, pattern: Pattern, values: torch.Tensor, bias: torch.Tensor | None, windows: Windows
) -> torch.Tensor | None:
    """Add the convolution of images (n, channels, rows, columns) to the graph; None as above."""
    if _is_tracked_or_cast() or isinstance(images, SparseTensor) or images.dtype != values.dtype:
        return None
    if _needs_gradients((images, values, bias)):
        return None
    numbers = list(numbers_of(windows))
    return torch.ops.scorch.convolution(  # type: ignore[no-any-return]
        images, values, _arrays_of(pattern), pattern.shape[0], bias, numbers
    )


def _needs_gradients(tensors: Sequence[torch.Tensor | None]) -> bool:
    if not _may_need_gradients():
        return False
    return any([tensor is not None and tensor.requires_grad for tensor in tensors])


def _arrays_of(pattern: Pattern) -> list[torch.Tensor]:
    """Return the index arrays of a pattern, by which ``pattern_of`` finds it."""
    pairs = zip(pattern.pos, pattern.crd, strict=True)
    return [array for pair in pairs for array in pair if array is not None]


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
    _check_untracked(input, values, bias, residual)
    call = (input, pattern, bias, activation, residual)
    if last is None or not last.covers(*call):
        pattern.structures[key] = LayerCall(*call)
    with torch.no_grad(), EnableTorchFunction():
        weight = SparseTensor(Storage(pattern, values.detach()))
        weight.__dict__["parameter"] = values
        return apply_layer(input, weight, values, *follows).contiguous()  # type: ignore[no-any-return]


def _check_untracked(*tensors: torch.Tensor | None) -> None:
    if torch.is_grad_enabled() and any_requires_grad(*tensors):
        raise UnsupportedError(
            "this graph was captured while no gradient of a sparse layer was needed; after "
            "requires_grad_(True), call torch.compiler.reset(), or export the model again"
        )


def _convolution(
    input: torch.Tensor,
    values: torch.Tensor,
    index: Sequence[torch.Tensor],
    kernels: int,
    bias: torch.Tensor | None,
    numbers: Sequence[int],
) -> torch.Tensor:
    windows = windows_of(tuple(numbers))
    columns = input.shape[1] // windows.groups * windows.kernel[0] * windows.kernel[1]
    pattern = pattern_of(CSR, (kernels, columns), index)
    _check_untracked(input, values, bias)
    with torch.no_grad():
        return convolve(input.resolve_neg(), pattern, values, bias, windows)


def _fake_convolution(
    input: torch.Tensor, values: Any, index: Any, kernels: Any, bias: Any, numbers: Sequence[int]
) -> torch.Tensor:
    windows = windows_of.__wrapped__(tuple(numbers))
    return input.new_empty(input.shape[0], kernels, *windows.out(input.shape[2:]))


def _fake_linear(
    input: torch.Tensor, values: Any, index: Any, format: Any, out_features: Any, *_: Any
) -> torch.Tensor:
    return input.new_empty(*input.shape[:-1], out_features)


for _device in served_devices():
    _library.impl("linear", _linear, _device.upper())
    _library.impl("convolution", _convolution, _device.upper())
torch.library.register_fake("scorch::linear", _fake_linear, lib=_library)
torch.library.register_fake("scorch::convolution", _fake_convolution, lib=_library)
