"""Linear layers with sparse weights: how they are made, multiplied by, and rewired.

``weights.sparse_weight`` holds their values and patterns, ``weights.saved_weight`` reads and writes files.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.compile.capture.layer_operator import trace_layer
from scorch._src.compile.recorder import PauseRecording
from scorch._src.formats import Format
from scorch._src.grad_state import is_tracked_by_autograd_alone, untracked
from scorch._src.name_hints import suggests_keywords
from scorch._src.nn.optimizer_hooks import move_states
from scorch._src.nn.pattern import (
    check_features,
    check_sizes,
    draw_pattern,
    find_old_positions,
    init_bias,
    init_values,
    is_same_pattern,
    magnitude_pattern,
    move_values,
    pattern_of_mask,
    refuse_weight,
    resolve_density,
    split_weight,
    weight_and_bias,
    weight_format,
)
from scorch._src.nn.sparse_layer import describe_storage
from scorch._src.nn.weights.saved_weight import SavedWeight
from scorch._src.nn.weights.sparse_weight import resize
from scorch._src.nn.weights.stored_values import WEIGHT_DTYPES, check_float, check_not_trained, dequantize
from scorch._src.ops.products.activations import check_activation, finish
from scorch._src.ops.products.layer import apply_layer
from scorch._src.ops.products.linear import linear_of_parameter
from scorch._src.ops.products.repeat_layer import LayerCall
from scorch._src.statements.modes import active
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import sparse_of, values_at
from scorch._src.tensor.create.check import device_for
from scorch._src.tensor.layer_weight import weight_of_layer
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, CallError, OperandError, ShapeError, kind_of


class SparseLinear(SavedWeight):
    """``torch.nn.Linear`` with a sparse weight: ``input @ weight.T + bias``.

    A new layer has a random sparsity pattern with equally many nonzeros in each row. To prune a trained
    layer, use ``from_dense``, ``from_mask`` or ``scorch.sparsify``. ``values`` is the trained parameter, one
    element per nonzero; ``weight`` is the weight as a ``SparseTensor``.

    Args:
        in_features: the size of an input.
        out_features: the size of an output.
        sparsity: the fraction of zeros in the weight, 0.9 by default.
        bias: whether to add a learned bias.
        density: the fraction of nonzeros, instead of ``sparsity``.
        blocks: the shape of the blocks to store, or their size if they are square.
        format: the format of the weight; ``"auto"`` is ``bsr`` with blocks and ``csr`` without.
        device: the device of the parameters.
        dtype: the dtype of the parameters.

    Raises:
        ArgumentError: both ``sparsity`` and ``density`` are given, or one is not between 0 and 1.
        FormatError: the format is dense, or does not store ``blocks``.

    Example:

        >>> import torch, scorch
        >>> layer = scorch.nn.SparseLinear(512, 256, sparsity=0.9)
        >>> layer
        SparseLinear(in_features=512, out_features=256, bias=True, format=csr, nnz=13107, density=10.00%)
        >>> layer(torch.ones(8, 512)).shape
        torch.Size([8, 256])
    """

    @suggests_keywords
    def __init__(
        self,
        in_features: int,
        out_features: int,
        sparsity: float | None = None,
        bias: bool = True,
        *,
        density: float | None = None,
        blocks: tuple[int, int] | int | None = None,
        format: str | Format = "auto",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        share = resolve_density(sparsity, density, default=0.1)
        form = weight_format(format, blocks)
        check_sizes(in_features=in_features, out_features=out_features)
        place = device_for("SparseLinear", device)
        pattern = draw_pattern((out_features, in_features), share, form, place)
        self._initialize(pattern, init_values(pattern, dtype), init_bias(pattern, dtype) if bias else None)

    # constructors ------------------------------------------------------------------------------------

    @classmethod
    def from_weight(cls, weight: SparseTensor, bias: torch.Tensor | None = None) -> SparseLinear:
        """Return a layer with a copy of this sparse weight, in the same format and with its explicit zeros.

        Args:
            weight: the weight, of shape (out_features, in_features).
            bias: the bias; the layer has none by default.
        """
        if not isinstance(weight, SparseTensor):
            raise OperandError(
                f"from_weight expected a SparseTensor, but got {kind_of(weight)}; use from_dense"
            )
        pattern, values = weight.storage.pattern, weight.storage.values
        if len(pattern.shape) != 2:
            raise ShapeError(f"weight must have shape (out_features, in_features), but got {pattern.shape}")
        if not values.is_floating_point() and not values.is_complex():
            raise CallError(f"weight must have a floating-point or complex dtype, but got {values.dtype}")
        if bias is not None and tuple(bias.shape) != (pattern.shape[0],):
            raise ShapeError(f"bias must have shape ({pattern.shape[0]},), but got {tuple(bias.shape)}")
        layer = cls.__new__(cls)
        layer._initialize(pattern, values if weight.is_given_away else _copy(values), _copy(bias))
        return layer

    @classmethod
    def from_dense(
        cls,
        linear: torch.nn.Linear | torch.Tensor,
        sparsity: float | None = None,
        *,
        density: float | None = None,
        blocks: tuple[int, int] | int | None = None,
        format: str | Format = "auto",
    ) -> SparseLinear:
        """Prune a layer or a weight by magnitude.

        Args:
            linear: a ``torch.nn.Linear``, or its weight.
            sparsity: the fraction of weights to prune; without it, all nonzeros are kept.
            density: the fraction of weights to keep, instead of ``sparsity``.
            blocks: the shape of the blocks to keep or prune, by their norms.
            format: the format of the weight, as in the constructor.

        Example:

            >>> import torch, scorch
            >>> scorch.nn.SparseLinear.from_dense(torch.nn.Linear(64, 32), sparsity=0.75).nnz
            512
        """
        weight, bias = weight_and_bias(linear)
        form = weight_format(format, blocks)
        if sparsity is None and density is None:
            pattern = pattern_of_mask(weight, tuple(weight.shape), form)
        else:
            pattern = magnitude_pattern(weight, resolve_density(sparsity, density), form)
        return cls.from_weight(sparse_of(pattern, values_at(weight, pattern)), bias)

    @classmethod
    def from_mask(
        cls, linear: torch.nn.Linear | torch.Tensor, mask: torch.Tensor, *, format: str | Format = "csr"
    ) -> SparseLinear:
        """Return a layer that stores the weights where ``mask`` is nonzero, including zeros among them.

        Args:
            linear: a ``torch.nn.Linear``, or its weight.
            mask: a dense or sparse tensor with the shape of the weight.
            format: the format of the weight.
        """
        weight, bias = weight_and_bias(linear)
        pattern = pattern_of_mask(mask, tuple(weight.shape), weight_format(format))
        return cls.from_weight(sparse_of(pattern, values_at(weight, pattern)), bias)

    # using a layer -----------------------------------------------------------------------------------

    @property
    def weight(self) -> SparseTensor:
        """The weight as a ``SparseTensor`` connected to ``values``.

        In-place functions change ``values``, under ``torch.no_grad()`` or of ``weight.data``. The sparsity
        pattern stays fixed: what they write elsewhere is dropped, or refused if it is named by an index.
        """
        self._check_values()
        values: torch.Tensor = self.values
        scales = self._buffers.get("scales")  # older pickles have none
        if scales is not None:
            values = dequantize(values, scales, self.pattern)
        return weight_of_layer(self, self.pattern, values)

    @weight.setter
    def weight(self, weight: SparseTensor) -> None:
        refuse_weight(self)

    def matrices(self) -> dict[str, SparseLinear]:
        """Return the layer itself, its only matrix, under an empty name."""
        return {"": self}

    @property
    def nnz(self) -> int:
        """The number of stored elements of the weight."""
        return self.pattern.size

    @property
    def format(self) -> Format:
        """The format of the weight."""
        return self.pattern.format

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return ``input @ weight.T + bias`` for a dense or sparse input."""
        return self.multiply(input, self._parameters.get("bias"))  # as ``self.bias``, which asks more places

    def fused(
        self, input: torch.Tensor, activation: str | None = None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return ``activation(input @ weight.T + bias) + residual`` from one fused kernel where possible.

        With gradients, the operations run one after the other.

        Args:
            input: a dense or sparse input.
            activation: ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"`` or None.
            residual: a tensor with the shape of the output.

        Example:

            >>> import torch, scorch
            >>> layer, x = scorch.nn.SparseLinear(64, 64), torch.ones(8, 64)
            >>> with torch.no_grad():
            ...     torch.allclose(layer.fused(x, "relu", residual=x), layer(x).relu() + x)
            True
        """
        check_activation(activation)
        return self.multiply(input, self._parameters.get("bias"), activation, residual)

    def multiply(
        self,
        input: torch.Tensor,
        bias: torch.Tensor | None,
        activation: str | None = None,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute ``fused`` with another bias."""
        values, scales = self._parameters.get("values"), self._buffers.get("scales")
        if scales is not None:
            check_not_trained(self)
        recorder = active.recorder
        if recorder is not None and type(values) is torch.nn.Parameter:
            with PauseRecording():
                self._check_seal()
                weight = self._detached_weight(values)
                arguments = (input, weight, values, bias, scales, activation, residual)
                recorded = recorder.try_record(apply_layer, arguments)
            if recorded is not None:
                return recorded  # type: ignore[no-any-return]
        if (
            type(values) is torch.nn.Parameter
            and type(input) is torch.Tensor
            and is_tracked_by_autograd_alone()
        ):
            self._check_seal()
            last: LayerCall | None = self.__dict__.get("_last_call")
            follows = (bias, scales, activation, residual)
            output = None if last is None else last.repeat(input, self.pattern, values, *follows)
            if output is not None:
                return output
            output = linear_of_parameter(input, self._detached_weight(values), *follows)
            if output is not None:
                call = (input, self.pattern, bias, activation, residual)
                if not output.requires_grad and (last is None or not last.covers(*call)):
                    self.__dict__["_last_call"] = LayerCall(*call)
                return output  # type: ignore[no-any-return]
        elif not torch.compiler.is_compiling():
            self._check_seal()
        check_features(input, self.in_features)
        if values is not None and torch.compiler.is_compiling():
            traced = trace_layer(input, self.pattern, values, bias, scales, activation, residual)
            if traced is not None:
                return traced
        weight = self.weight
        if values is not None and values.dtype == torch.bfloat16 and input.dtype == torch.float32:
            weight = sparse_of(self.pattern, values.float())
        return finish(F.linear(input, weight, bias), activation, residual)  # type: ignore[no-any-return]

    def _detached_weight(self, values: torch.Tensor) -> SparseTensor:
        """Return the weight detached from ``values``, cached by their pattern and memory."""
        cached: SparseTensor | None = self.__dict__.get("_inference_cache")
        if cached is not None and cached.parameter is values:
            storage = cached.storage
            if storage.pattern is self.pattern and storage.values.is_set_to(values):
                return cached
        self._check_values()
        with untracked():
            detached = SparseTensor(Storage(self.pattern, values.detach()))
        detached.parameter = values
        self.__dict__["_inference_cache"] = detached
        return detached

    def reset_parameters(self) -> None:
        """Initialize the values again, with the same sparsity pattern."""
        check_float(self)
        with torch.no_grad():
            self.values.copy_(init_values(self.pattern, self.values.dtype))
            if self.bias is not None:
                self.bias.copy_(init_bias(self.pattern, self.bias.dtype))

    def to_dense(self) -> torch.nn.Linear:
        """Return a ``torch.nn.Linear`` with the same weight."""
        dtype = self.bias.dtype if self.bias is not None else self.weight.dtype
        layer = torch.nn.Linear(self.in_features, self.out_features, self.bias is not None, dtype=dtype)
        with torch.no_grad():
            layer.weight.copy_(self.weight.detach().to_dense())
            if self.bias is not None:
                layer.bias.copy_(self.bias)
        return layer

    # changing the pattern ----------------------------------------------------------------------------

    @suggests_keywords
    def rewire(
        self,
        weight: SparseTensor | torch.Tensor | Pattern,
        *,
        new: float | None = None,
        optimizer: Any = None,
    ) -> torch.Tensor:
        """Change the sparsity pattern to that of ``weight``, in place.

        ``values`` stays the same parameter, even if its number of elements changes; its gradient moves along.

        Args:
            weight: a weight, a mask or a pattern with the shape of the weight.
            new: the value of new entries, while old ones keep theirs; without it, the values are those of
                ``weight``.
            optimizer: one or several optimizers that have not made a step yet, but have a state. The state
                per value of all optimizers moves along; it is zero for new entries.

        Returns:
            The old position of each stored element, or -1 for a new one.

        Raises:
            ArgumentError: ``weight`` is a mask or a pattern, and ``new`` is missing.
        """
        check_float(self)
        pattern, values = split_weight(weight, self.pattern.shape, self.format)
        if values is None and new is None:
            raise ArgumentError(
                "rewire reads a dense tensor as a mask, which has no values, like a pattern: pass the value "
                "of new entries, as in new=0.0; to take the values of a dense weight, pass "
                "scorch.from_torch(weight, format='csr')"
            )
        before = self.pattern
        old_positions = find_old_positions(before, pattern)
        with torch.no_grad():
            new_values = move_values(self.values, old_positions, new) if new is not None else values
            assert new_values is not None
            gradient, self.values.grad = self.values.grad, None
            if new_values.numel() == self.values.numel():
                self.values.copy_(new_values)
            else:
                resize(self.values, new_values.to(self.values.dtype).clone())
            if gradient is not None:
                self.values.grad = move_values(gradient, old_positions)
        if not is_same_pattern(before, pattern):
            move_states(optimizer, self.values, old_positions, before.size)
            self._set_pattern(pattern)
        return old_positions

    # Python ------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, format={self.format}, {describe_storage(self)}"
            + (f", values={self.values.dtype}" if self.values.dtype in WEIGHT_DTYPES else "")
        )


def _copy(tensor: Any) -> Any:
    """Return a copy of a tensor, if there is one; nobody else writes to one without memory."""
    return tensor if tensor is None or tensor.is_meta else tensor.detach().clone()
