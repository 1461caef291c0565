"""Linear layers with sparse weights.

A sparse weight has two parts. Its values are a plain parameter with one element for each entry, so every
optimizer, ``DistributedDataParallel``, gradient clipping and anything else that handles parameters works
unchanged. Its sparsity pattern is a ``Pattern`` of the layer; it is saved as integer arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    compute_fingerprint,
    convert_weight,
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
from scorch._src.nn.saved_pattern import (
    pattern_from_arrays,
    pattern_from_words,
    pattern_to_words,
    warn_of_save_pretrained,
)
from scorch._src.nn.sparse_layer import SparseLayer, describe_storage
from scorch._src.nn.stored_values import WEIGHT_DTYPES, check_float, check_not_trained, dequantize
from scorch._src.ops.products.activations import check_activation, finish
from scorch._src.ops.products.layer import apply_layer
from scorch._src.ops.products.linear import linear_of_parameter
from scorch._src.ops.products.repeat_layer import LayerCall
from scorch._src.statements.modes import active
from scorch._src.storage.storage import Pattern, Storage, add_weak
from scorch._src.tensor.autograd import REWIRED, sparse_of, values_at
from scorch._src.tensor.create.check import device_for
from scorch._src.tensor.flatten import remember
from scorch._src.tensor.layer_weight import KEPT, rewire_kept_weights, weight_of_layer
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, CallError, OperandError, ShapeError, kind_of

_CACHED = (
    "_inference_cache",
    "_last_call",
    "pattern_of_weight",
    KEPT,
)  # attributes that copies and files do without


class SparseLinear(SparseLayer):
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

    in_features: int
    out_features: int
    values: torch.nn.Parameter
    bias: torch.nn.Parameter | None
    pattern: Pattern
    scales: torch.Tensor | None  # of the rows, where values are 8-bit integers
    seal: torch.Tensor  # the fingerprint of the pattern, by which processes detect that theirs differ
    _sealed: int  # the same on this process
    _seen: int  # the version of ``seal`` that was compared with it

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

    def _initialize(self, pattern: Pattern, values: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self._parameters.update(values=None, bias=None)  # or torch asks for attributes of these names
        self._buffers.update(scales=None, seal=None)
        self._non_persistent_buffers_set.add("seal")
        self.register_parameter("values", torch.nn.Parameter(values))  # less to ask than for an attribute
        if bias is not None:
            self.register_parameter("bias", torch.nn.Parameter(bias))
        self.__dict__.update(out_features=pattern.shape[0], in_features=pattern.shape[1])
        self._set_pattern(pattern)

    def _apply(self, fn: Any, recurse: bool = True) -> SparseLinear:
        """Move the pattern with the values, for ``layer.to(device)``."""
        super()._apply(fn, recurse)
        if self.pattern.device != self.values.device:
            self.pattern = self.pattern.to(self.values.device)
            self._remember_pattern()
            if self.values in REWIRED:
                REWIRED[self.values] = self.pattern
        return self

    def set_weight_shape(self, shape: tuple[int, ...]) -> None:
        """Set the shape that the weight has for users of a layer that stores it as this matrix."""
        self.__dict__["_weight_shape"] = shape
        self._remember_pattern()

    def _remember_pattern(self) -> None:
        """Let graphs find the pattern and that of the weight by their arrays, and the layer by both."""
        self.__dict__["pattern_of_weight"] = pattern = self.pattern
        self._link(pattern)
        shape = self.__dict__.get("_weight_shape", pattern.shape)
        if shape != pattern.shape:
            self.__dict__["pattern_of_weight"] = reshaped = self._pattern_of_shape(shape)
            self._link(reshaped)

    def _link(self, pattern: Pattern) -> None:
        remember(pattern)
        add_weak(pattern.__dict__.setdefault("layers", []), self)

    def _set_pattern(self, pattern: Pattern) -> None:
        if "pattern" in self.__dict__:
            REWIRED[self.values] = pattern
        sealed = compute_fingerprint(pattern)
        seal = self._buffers["seal"] = torch.tensor(sealed, device=pattern.device)
        self.__dict__.update(pattern=pattern, _sealed=sealed, _seen=_version(seal))  # names that pickles have
        self._remember_pattern()
        rewire_kept_weights(self)

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

    def _pattern_of_shape(self, shape: tuple[int, ...]) -> Pattern:
        """Return the pattern of the weight in this shape, with the values in the same order."""
        pattern = self.pattern
        if tuple(shape) == pattern.shape:
            return pattern
        reshaped: Pattern | None = pattern.structures.get(shape)
        if reshaped is None:
            with untracked():
                tensor: Any = SparseTensor(Storage(pattern, pattern.present)).reshape(shape)
            reshaped = pattern.structures[shape] = tensor.storage.pattern
        return reshaped

    def _check_values(self) -> None:
        if self.values.shape != (self.pattern.size,):
            raise ShapeError(
                f"values has shape {tuple(self.values.shape)}, but the weight has {self.pattern.size} "
                "entries; change both with rewire"
            )

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

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _CACHED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._remember_pattern()

    def _check_seal(self) -> None:
        """Raise if another process has sent a different fingerprint."""
        seal = self._buffers["seal"]
        assert seal is not None
        if _version(seal) == self._seen:
            return
        if int(seal) != self._sealed:
            raise CallError(
                "the sparsity pattern differs from rank 0, or from the model that this one averages, so "
                "values cannot be exchanged; use the same seed (torch.manual_seed) on all ranks before you "
                "create or rewire the layer, load the same state_dict, or rewire both models"
            )
        self._seen = _version(seal)

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
                _resize(self.values, new_values.to(self.values.dtype).clone())
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

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        warn_of_save_pretrained(destination)
        destination[f"{prefix}pattern"] = pattern_to_words(self.pattern)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key, start = f"{prefix}pattern", f"{prefix}pattern."
        own = {name: value for name, value in state_dict.items() if name.startswith(prefix)}
        if self._holds(own, prefix):
            return
        plain = {name: value for name, value in own.items() if name != key and not name.startswith(start)}
        if len(plain) < len(own):
            try:
                pattern = self._read_pattern(own, key)
            except (ValueError, IndexError, TypeError) as error:
                error_msgs.append(
                    f"invalid sparsity pattern of {prefix}weight, which has shape {self.pattern.shape} "
                    f"in the model: {error}"
                )
                return
            values = plain.get(f"{prefix}values")
            if not isinstance(values, torch.Tensor) or tuple(values.shape) != (pattern.size,):
                error_msgs.append(
                    f"{prefix}values must have {pattern.size} elements, one per nonzero of the sparsity "
                    "pattern"
                )
                return
            self._load_pattern(pattern)
            self._load_storage(plain.get(f"{prefix}scales"))
        elif f"{prefix}values" in plain:
            missing_keys.append(f"{prefix}pattern")
        elif isinstance(plain.get(f"{prefix}weight"), torch.Tensor):
            self._load_storage(None)
            plain[f"{prefix}values"] = self._values_from_weight(
                plain.pop(f"{prefix}weight"), prefix, error_msgs
            )
        super()._load_from_state_dict(
            plain, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _holds(self, state: Mapping[str, Any], prefix: str) -> bool:
        """Whether the layer has these very parameters and this pattern, and nothing else is to be loaded."""
        held = {"pattern": self.pattern, **self._parameters, **self._buffers}
        unsaved = self._non_persistent_buffers_set
        names = [name for name, value in held.items() if value is not None and name not in unsaved]
        is_held = all(state.get(f"{prefix}{name}") is held[name] for name in names)
        return is_held and len(state) == len(names) and not self._load_state_dict_pre_hooks

    def _read_pattern(self, state: Mapping[str, Any], name: str) -> Pattern:
        """Read a pattern from a ``state_dict``, or from an older one, which has each of its arrays."""
        shape, device = self.pattern.shape, self.pattern.device
        if isinstance(state.get(name), Pattern):  # read and checked already
            return state[name].to(device)  # type: ignore[no-any-return]
        if name in state:
            return pattern_from_words(state[name], shape, device)
        start = f"{name}."
        arrays = {key[len(start) :]: value for key, value in state.items() if key.startswith(start)}
        return pattern_from_arrays(arrays, shape, device)

    def _load_pattern(self, pattern: Pattern) -> None:
        """Replace the pattern by another one, whose values are loaded next."""
        if is_same_pattern(self.pattern, pattern):
            return
        before = self.pattern
        if pattern.size != self.values.numel():
            self.values.grad = None
            _resize(self.values, self.values.new_empty(pattern.size))
        move_states(None, self.values, find_old_positions(before, pattern), before.size)
        self._set_pattern(pattern)

    def _load_storage(self, scales: torch.Tensor | None) -> None:
        """Allocate 8-bit values with these scales, or floating-point values."""
        own = self._buffers.get("scales")
        if (own is None) == (scales is None):
            return
        is_float = scales is None
        dtype = own.dtype if own is not None else torch.int8
        self.values = torch.nn.Parameter(torch.empty_like(self.values, dtype=dtype), requires_grad=is_float)
        self.scales = None if scales is None else torch.empty_like(scales, device=self.values.device)

    def _values_from_weight(self, weight: torch.Tensor, prefix: str, error_msgs: list[str]) -> torch.Tensor:
        """Return the values of a weight: of a sparse one with its pattern, of a dense one on ours."""
        if tuple(weight.shape) != self.pattern.shape:
            error_msgs.append(
                f"{prefix}weight has shape {tuple(weight.shape)}, but the layer has "
                f"{self.out_features} outputs and {self.in_features} inputs"
            )
            return self.values
        if isinstance(weight, SparseTensor):
            weight = convert_weight(weight, self.format)
            self._load_pattern(weight.storage.pattern)
            return weight.storage.values
        return values_at(weight.detach(), self.pattern)


def _resize(parameter: torch.Tensor, values: torch.Tensor) -> None:
    """Give a parameter another number of values.

    The node that adds up its gradients, which graphs keep alive, knows the old number; autograd replaces it
    where the dtype changes.
    """
    parameter.data = values.new_empty(
        0, dtype=torch.float64 if values.dtype == torch.float32 else torch.float32
    )
    parameter.data = values


def _copy(tensor: Any) -> Any:
    """Return a copy of a tensor, if there is one; nobody else writes to one without memory."""
    return tensor if tensor is None or tensor.is_meta else tensor.detach().clone()


def _version(seal: torch.Tensor) -> int:
    """Return how often a tensor was written to; -1 if it is one of inference, which do not count."""
    return -1 if seal.is_inference() else seal._version
