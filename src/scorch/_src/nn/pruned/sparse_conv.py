"""Convolutions with sparse kernels.

A kernel is one row of a sparse matrix, whose columns are (channel of the group, row, column) counted in this
order. Inference reads the image at the offsets of stored weights, without unfolding it. With gradients, and
inside ``torch.compile``, PyTorch convolves with the weight as a dense tensor; only stored weights get a
gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.backends.base import routines_for
from scorch._src.backends.routines import Windows
from scorch._src.bounded import BoundedCache
from scorch._src.grad_state import is_plain_inference
from scorch._src.name_hints import created_by_sparsify
from scorch._src.nn.pattern import refuse_weight
from scorch._src.nn.sparse_linear import SparseLinear
from scorch._src.statements.autocast import is_autocast
from scorch._src.tensor.sparse_tensor import SparseTensor

MAX_IMAGE_SIZES = 8  # whose plans a layer keeps
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


class SparseConvNd(torch.nn.Module):
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
        for name in SETTINGS:
            setattr(self, name, settings[name])
        self._plans: BoundedCache[Any, Any] = BoundedCache(MAX_IMAGE_SIZES)

    @classmethod
    def from_weight(cls, weight: SparseTensor, conv: torch.nn.Module) -> SparseConvNd:
        """Return a layer with the settings and bias of ``conv``; ``weight`` has one row per kernel."""
        rows = weight.to_format("csr")
        assert isinstance(rows, SparseTensor)
        settings = {name: getattr(conv, name) for name in SETTINGS}
        return cls(SparseLinear.from_weight(rows, conv.bias), **settings)  # type: ignore[arg-type]

    @property
    def weight(self) -> SparseTensor:
        """The weight in PyTorch's shape, connected to the values of ``kernels``."""
        weight = self.kernels.weight.reshape(self._weight_shape())
        assert isinstance(weight, SparseTensor)
        return weight

    @weight.setter
    def weight(self, weight: SparseTensor) -> None:
        refuse_weight(self)

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """Register a parameter, which torch does before it looks for a property of that name."""
        if name == "weight":
            refuse_weight(self)
        super().register_parameter(name, param)

    @property
    def bias(self) -> torch.nn.Parameter | None:
        """The bias of each output channel."""
        return self.kernels.bias

    def _weight_shape(self) -> tuple[int, ...]:
        return self.out_channels, self.in_channels // self.groups, *self.kernel_size

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Convolve ``input``, with or without a batch."""
        kernels = self.kernels
        is_plain = type(input) is torch.Tensor and input.dtype == kernels.values.dtype and not is_autocast()
        dims = len(self.kernel_size)
        if not is_plain or not is_plain_inference(input, kernels.values, kernels.bias):
            return self._convolve_densely(input)
        is_batched = input.dim() == dims + 2
        images = input if is_batched else input.unsqueeze(0)
        if images.dim() != dims + 2 or images.shape[1] != self.in_channels:
            return self._convolve_densely(input)  # which says what is wrong
        images, windows = self._find_windows(images)
        if min(windows.out(images.shape[2:])) < 1 or not images.shape[0]:
            return self._convolve_densely(input)
        output = self._convolve(images, windows)
        output = output.squeeze(2) if dims == 1 else output
        return output if is_batched else output.squeeze(0)

    def _find_windows(self, images: torch.Tensor) -> tuple[torch.Tensor, Windows]:
        """Return 2-D images, padded unless by zeros, and their windows."""
        padding = self._paddings()
        if self.padding_mode != "zeros":
            images = F.pad(images, padding, mode=self.padding_mode)
            padding = [0] * len(padding)
        if len(self.kernel_size) == 1:
            images, padding = images.unsqueeze(2), [*padding, 0, 0]
        left, right, top, bottom = padding
        one = (1,) if len(self.kernel_size) == 1 else ()
        kernel, stride, dilation = (
            (one + tuple(sizes))[-2:] for sizes in (self.kernel_size, self.stride, self.dilation)
        )
        return images, Windows(kernel, stride, (top, bottom, left, right), dilation, self.groups)  # type: ignore[arg-type]

    def _paddings(self) -> list[int]:
        """Return the padding before and after each dimension, the last first, as ``F.pad`` expects it."""
        paddings: list[int] = []
        for dim in reversed(range(len(self.kernel_size))):
            if isinstance(self.padding, str):
                reach = self.dilation[dim] * (self.kernel_size[dim] - 1) if self.padding == "same" else 0
                paddings += [reach // 2, reach - reach // 2]
            else:
                paddings += [self.padding[dim]] * 2
        return paddings

    def _convolve(self, images: torch.Tensor, windows: Windows) -> torch.Tensor:
        pattern, values = self.kernels.pattern, self.kernels.values.detach()
        pos, crd = pattern.pos[-1], pattern.crd[-1]
        assert pos is not None and crd is not None
        routines = routines_for(images)
        key = (*images.shape[1:], windows)
        known = self._plans.get(key)
        if known is None or known[0] is not pattern:
            image = (images.shape[1], images.shape[2], images.shape[3])
            known = self._plans[key] = pattern, routines.plan_convolution(pos, crd, windows, image)
        bias = self.kernels.bias
        weight = (pos, crd, values)
        return routines.convolve(weight, None if bias is None else bias.detach(), images, windows, known[1])

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

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": BoundedCache(MAX_IMAGE_SIZES)}

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}"
        )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Accept a dense weight, too, of which only the stored elements are loaded."""
        weight, bias = (state_dict.pop(f"{prefix}{name}", None) for name in ("weight", "bias"))
        if weight is not None:
            state_dict[f"{prefix}kernels.weight"] = weight.flatten(1)
        if bias is not None:
            state_dict[f"{prefix}kernels.bias"] = bias
        super()._load_from_state_dict(state_dict, prefix, *args)


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
