"""Convolutions with sparse kernels.

A kernel is one row of a sparse matrix, whose columns are (channel of the group, row, column) counted in this
order. Inference reads the image at the offsets of stored weights, without unfolding it, and does what follows
(a batch norm, a residual, an activation) in the same pass; in graphs of ``torch.compile`` it is an operator.
With gradients, PyTorch convolves with the weight as a dense tensor; only stored weights get a gradient.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.backends.by_torch.convolutions import NOTHING, Epilogue, Windows
from scorch._src.compile.capture.layer_operator import trace_convolution
from scorch._src.compile.lazy_tensor import materialize
from scorch._src.compile.recorder import PauseRecording
from scorch._src.grad_state import is_plain_inference
from scorch._src.name_hints import created_by_sparsify
from scorch._src.nn.pattern import refuse_weight
from scorch._src.nn.sparse_layer import LayerOfOneMatrix
from scorch._src.nn.sparse_linear import SparseLinear
from scorch._src.ops.products.activations import check_activation, finish
from scorch._src.ops.products.convolution import (
    apply_convolution,
    convolve,
    find_fixed_norm,
    numbers_of,
)
from scorch._src.ops.products.linear import CSR
from scorch._src.statements.autocast import is_autocast
from scorch._src.statements.modes import active
from scorch._src.tensor.layer_weight import weight_of_layer
from scorch._src.tensor.sparse_tensor import SparseTensor

SETTINGS = (
    "in_channels",
    "out_channels",
    "kernel_size",
    "stride",
    "padding",
    "dilation",
    "groups",
    "padding_mode",
)


class SparseConvNd(LayerOfOneMatrix):
    """Base class of convolutions with sparse kernels; ``scorch.sparsify`` creates them."""

    dense: type[torch.nn.Conv1d] | type[torch.nn.Conv2d]
    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str

    @created_by_sparsify
    def __init__(self, kernels: SparseLinear, **settings: Any) -> None:
        super().__init__()
        self.kernels = kernels
        self.__dict__.update(
            {name: settings[name] for name in SETTINGS}
        )  # numbers: no need to ask for modules
        kernels.set_weight_shape(self._weight_shape())

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.kernels.set_weight_shape(self._weight_shape())

    @classmethod
    def from_weight(cls, weight: SparseTensor, conv: torch.nn.Module) -> SparseConvNd:
        """Return a layer with the settings and bias of ``conv``; ``weight`` has one row per kernel."""
        rows = weight if weight.storage.pattern.format == CSR else weight.to_format("csr")
        assert isinstance(rows, SparseTensor)
        settings = {name: getattr(conv, name) for name in SETTINGS}
        return cls(SparseLinear.from_weight(rows, conv.bias), **settings)  # type: ignore[arg-type]

    @property
    def weight(self) -> SparseTensor:
        """The weight in PyTorch's shape, connected to ``values``, which in-place functions change."""
        return weight_of_layer(self.kernels, self.kernels.pattern_of_weight, self.kernels.values)

    @weight.setter
    def weight(self, weight: SparseTensor) -> None:
        refuse_weight(self)

    @property
    def bias(self) -> torch.nn.Parameter | None:
        """The bias of each output channel."""
        return self.kernels.bias

    def _weight_shape(self) -> tuple[int, ...]:
        return self.out_channels, self.in_channels // self.groups, *self.kernel_size

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Convolve ``input``, with or without a batch."""
        if active.recorder is not None:
            return self._record(active.recorder, input)
        output = self._trace(input) if torch.compiler.is_compiling() else self._convolve(input)
        return self._convolve_densely(input) if output is None else output

    def _trace(self, input: torch.Tensor) -> torch.Tensor | None:
        """Add the convolution to the graph that is traced; None where it is traced as a dense one."""
        dims, kernels = len(self.kernel_size), self.kernels
        found = self._find_windows(input)
        if found is None:
            return None
        images, windows = found
        output = trace_convolution(images, kernels.pattern, kernels.values, kernels.bias, windows)
        if output is None:
            return None
        output = output.squeeze(2) if dims == 1 else output
        return output if input.dim() == dims + 2 else output.squeeze(0)

    def fused(
        self,
        input: torch.Tensor,
        activation: str | None = None,
        residual: torch.Tensor | None = None,
        norm: Any = None,
    ) -> torch.Tensor:
        """Return ``activation(norm(layer(input)) + residual)`` from one pass where possible.

        With gradients, the operations run one after the other. As in residual networks, and unlike in linear
        layers, the residual is added before the activation.

        Args:
            input: images, with or without a batch.
            activation: ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"`` or None.
            residual: a tensor with the shape of the output.
            norm: a batch norm; in training mode, nothing is fused.
        """
        check_activation(activation)
        is_traced = torch.compiler.is_compiling()
        follows = None if is_traced else self._find_epilogue(activation, residual, norm)
        output = None if follows is None else self._convolve(input, follows)
        if output is not None:
            return output
        output = self(input)
        output = output if norm is None else norm(output)
        return finish(output if residual is None else output + residual, activation, None)  # type: ignore[no-any-return]

    def _find_epilogue(self, activation: str | None, residual: Any, norm: Any) -> Epilogue | None:
        """Return what follows, as a routine takes it; None where PyTorch must compute it."""
        others = [] if residual is None else [residual]
        fixed = None
        if norm is not None:
            parts = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
            fixed = find_fixed_norm(self.out_channels, self.kernels.values.dtype, *parts, norm.eps)
            if norm.training or fixed is None:
                return None
            others += [other for other in parts if other is not None]
        if not is_plain_inference(*others) or is_autocast():
            return None
        return Epilogue(fixed, residual, activation)

    def _convolve(self, input: torch.Tensor, follows: Epilogue = NOTHING) -> torch.Tensor | None:
        """Convolve where nothing is tracked, and do what follows; None where PyTorch must."""
        kernels = self.kernels
        is_plain = type(input) is torch.Tensor and input.dtype == kernels.values.dtype and not is_autocast()
        dims = len(self.kernel_size)
        if not is_plain or input.is_neg() or not is_plain_inference(input, kernels.values, kernels.bias):
            return None
        is_batched = input.dim() == dims + 2
        if follows.norm is not None and not is_batched:
            return None  # without a batch, PyTorch's batch norm takes the first dimension for it, or refuses
        found = self._find_windows(input) if input.numel() else None
        if found is None:
            return None
        images, windows = found
        out = windows.out(images.shape[2:])
        shape = torch.Size((images.shape[0], self.out_channels, *out[-dims:]))
        residual = follows.residual
        if residual is not None:
            is_fit = (
                type(residual) is torch.Tensor and residual.dtype == input.dtype and not residual.is_neg()
            )
            if not is_fit or residual.shape != (shape if is_batched else shape[1:]):
                return None
            follows = follows._replace(residual=residual.view(images.shape[0], self.out_channels, *out))
        output = convolve(images, kernels.pattern, kernels.values, kernels.bias, windows, follows)
        if is_batched and dims == 2:
            return output
        return output.view(shape if is_batched else shape[1:])

    def _record(self, recorder: Any, input: Any) -> torch.Tensor:
        """Record the convolution of images where nothing is tracked, else run it."""
        kernels = self.kernels
        with PauseRecording():
            input = materialize(input)
            if self._is_recordable(input):
                found = self._find_windows(input)
                if found is not None:
                    weight = kernels._detached_weight(kernels.values)
                    arguments = (input, weight, kernels.bias, *numbers_of(found[1]))
                    recorded = recorder.try_record(apply_convolution, arguments)
                    if recorded is not None:
                        return recorded  # type: ignore[no-any-return]
            recorder.sparse_call_count += 1
            output = self._convolve(input)
            return self._convolve_densely(input) if output is None else output

    def _is_recordable(self, input: Any) -> bool:
        """Whether an input is images as they are convolved, and nothing is tracked."""
        if type(input) is not torch.Tensor or input.dim() != 4 or input.dtype != self.kernels.values.dtype:
            return False
        if self.padding_mode != "zeros" or len(self.kernel_size) != 2 or is_autocast():
            return False
        is_fit = input.numel() > 0 and not input.is_neg()
        return is_fit and is_plain_inference(input, self.kernels.values, self.kernels.bias)

    def _find_windows(self, input: torch.Tensor) -> tuple[torch.Tensor, Windows] | None:
        """Return 2-D images, padded unless by zeros, and their windows; None where PyTorch refuses them."""
        dims, is_padded = len(self.kernel_size), self.padding_mode != "zeros"
        images = input if input.dim() == dims + 2 else input.unsqueeze(0)
        if images.dim() != dims + 2 or images.shape[1] != self.in_channels or 0 in images.shape[2:]:
            return None
        if is_padded:
            images = F.pad(images, self._paddings(), mode=self.padding_mode)
        settings = (self.kernel_size, self.stride, self.padding, self.dilation, self.groups, is_padded)
        windows = _make_windows(*settings) if torch.compiler.is_compiling() else _windows(*settings)
        images = images.unsqueeze(2) if dims == 1 else images
        return None if min(windows.out(images.shape[2:])) < 1 else (images, windows)

    def _paddings(self) -> list[int]:
        """Return the padding before and after each dimension, the last first, as ``F.pad`` expects it."""
        return _paddings(self.kernel_size, self.padding, self.dilation)

    def _convolve_densely(self, input: torch.Tensor) -> torch.Tensor:
        weight = self.kernels.weight.to_dense().reshape(self._weight_shape())
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input, padding = F.pad(input, self._paddings(), mode=self.padding_mode), 0
        convolve: Any = F.conv1d if len(self.kernel_size) == 1 else F.conv2d
        output: torch.Tensor = convolve(
            input, weight, self.kernels.bias, self.stride, padding, self.dilation, self.groups
        )
        return output

    def to_dense(self) -> torch.nn.Module:
        """Return PyTorch's layer with the same weight."""
        settings: dict[str, Any] = {name: getattr(self, name) for name in SETTINGS}
        values, bias = self.kernels.values, self.kernels.bias
        layer = self.dense(**settings, bias=bias is not None, dtype=values.dtype, device=values.device)
        with torch.no_grad():
            layer.weight.copy_(self.kernels.weight.detach().to_dense().view_as(layer.weight))
            if bias is not None and layer.bias is not None:
                layer.bias.copy_(bias)
        return layer

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}"
        )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Accept a dense weight, too, of which only the stored elements are loaded."""
        own = f"{prefix}kernels."
        if not self._load_state_dict_pre_hooks and all(name.startswith(own) for name in state_dict):
            return  # the layer itself has nothing to load
        weight, bias = (state_dict.pop(f"{prefix}{name}", None) for name in ("weight", "bias"))
        if weight is not None:
            state_dict[f"{prefix}kernels.weight"] = weight.flatten(1)
        if bias is not None:
            state_dict[f"{prefix}kernels.bias"] = bias
        super()._load_from_state_dict(state_dict, prefix, *args)


def _paddings(
    kernel_size: tuple[int, ...], padding: tuple[int, ...] | str, dilation: tuple[int, ...]
) -> list[int]:
    paddings: list[int] = []
    for dim in reversed(range(len(kernel_size))):
        if isinstance(padding, str):
            reach = dilation[dim] * (kernel_size[dim] - 1) if padding == "same" else 0
            paddings += [reach // 2, reach - reach // 2]
        else:
            paddings += [padding[dim]] * 2
    return paddings


def _make_windows(
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...] | str,
    dilation: tuple[int, ...],
    groups: int,
    is_padded: bool,
) -> Windows:
    """Return the windows of a layer over 2-D images, which are padded already if ``is_padded``."""
    paddings = [0] * (2 * len(kernel_size)) if is_padded else _paddings(kernel_size, padding, dilation)
    if len(kernel_size) == 1:
        paddings += [0, 0]
    left, right, top, bottom = paddings
    one = (1,) if len(kernel_size) == 1 else ()
    kernel, steps, apart = ((one + tuple(sizes))[-2:] for sizes in (kernel_size, stride, dilation))
    return Windows(kernel, steps, (top, bottom, left, right), apart, groups)  # type: ignore[arg-type]


_windows = functools.lru_cache(maxsize=1024)(_make_windows)


class SparseConv1d(SparseConvNd):
    """``torch.nn.Conv1d`` with sparse kernels; created by ``scorch.sparsify``.

    Example:

        >>> import torch, scorch
        >>> layer = scorch.sparsify(torch.nn.Conv1d(16, 8, 3, padding=1), sparsity=0.9, prefer="size")
        >>> layer(torch.ones(1, 16, 5)).shape
        torch.Size([1, 8, 5])
    """

    dense = torch.nn.Conv1d


class SparseConv2d(SparseConvNd):
    """``torch.nn.Conv2d`` with sparse kernels; created by ``scorch.sparsify``.

    Example:

        >>> import torch, scorch
        >>> layer = scorch.sparsify(torch.nn.Conv2d(16, 8, 3, padding=1), sparsity=0.9, prefer="size")
        >>> layer(torch.ones(1, 16, 5, 5)).shape
        torch.Size([1, 8, 5, 5])
    """

    dense = torch.nn.Conv2d
