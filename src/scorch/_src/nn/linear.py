"""Linear layers with sparse weights.

A sparse weight is two things. Its values are a plain parameter with one element for each entry, so every
optimizer, ``DistributedDataParallel``, gradient clipping and what else handles parameters works as it is. Its
places are a ``Pattern`` of the layer; they are saved with it as integer arrays.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.formats import Format
from scorch._src.grad_state import is_plain_inference
from scorch._src.nn.pattern import (
    carried,
    carry_state,
    chosen_density,
    drawn_pattern,
    fingerprint,
    initial_bias,
    initial_values,
    largest_pattern,
    masked_pattern,
    old_places,
    same_places,
    stored_as,
    weight_format,
)
from scorch._src.nn.state_dict import pattern_from, pattern_to
from scorch._src.ops.products.linear import linear
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import sparse_of, values_at
from scorch._src.tensor.create.check import device_for
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, CallError, OperandError, ShapeError


class SparseLinear(torch.nn.Module):
    """``input @ weight.T + bias`` with a sparse weight.

    The weight begins at random places, as many in each row, with values scaled to them; ``from_dense`` and
    ``from_mask`` make layers of trained weights. ``weight`` is the weight as a ``SparseTensor``, ``values``
    the parameter that is learned: one element for each entry of ``weight``, in the order stored.

    >>> import torch, scorch
    >>> layer = scorch.nn.SparseLinear(512, 256, sparsity=0.9)
    >>> layer
    SparseLinear(in_features=512, out_features=256, bias=True, format=csr, nnz=13107, density=10.00%)
    >>> layer(torch.ones(8, 512)).shape
    torch.Size([8, 256])
    """

    values: torch.nn.Parameter
    bias: torch.nn.Parameter | None
    seal: torch.Tensor  # the fingerprint of the pattern, by which processes notice that theirs differ

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
        share = chosen_density(sparsity, density, default=0.1)
        form = weight_format(format, blocks)
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise ArgumentError(f"{name} is a number of features, not {size!r}")
        place = device_for("SparseLinear", device)
        pattern = drawn_pattern((out_features, in_features), share, form, place)
        self._begin(pattern, initial_values(pattern, dtype), initial_bias(pattern, dtype) if bias else None)

    def _begin(self, pattern: Pattern, values: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = pattern.shape
        self.values = torch.nn.Parameter(values)
        self.bias = None if bias is None else torch.nn.Parameter(bias)
        self.register_buffer(
            "seal", torch.zeros((), dtype=torch.int64, device=pattern.device), persistent=False
        )
        self._set(pattern)

    def _set(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.seal = torch.tensor(fingerprint(pattern), device=pattern.device)
        self._sealed = int(self.seal)
        self._seen = self.seal._version

    # other ways to make one --------------------------------------------------------------------------

    @classmethod
    def from_weight(cls, weight: SparseTensor, bias: torch.Tensor | None = None) -> SparseLinear:
        """The layer with this sparse weight, its entries and format as they are; values are copied."""
        if not isinstance(weight, SparseTensor):
            raise OperandError(
                f"from_weight takes a SparseTensor, not a {type(weight).__name__}; use from_dense"
            )
        if weight.dim() != 2:
            raise ShapeError(f"a weight is a matrix (out_features, in_features), not {tuple(weight.shape)}")
        if not weight.dtype.is_floating_point and not weight.dtype.is_complex:
            raise CallError(f"a weight that is learned has floating-point values, not {weight.dtype}")
        if bias is not None and tuple(bias.shape) != (weight.shape[0],):
            raise ShapeError(f"bias has shape {tuple(bias.shape)}, but there are {weight.shape[0]} outputs")
        made = cls.__new__(cls)
        own = None if bias is None else bias.detach().clone()
        made._begin(weight.storage.pattern, weight.storage.values.detach().clone(), own)
        return made

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
        """A layer, or a weight, with its largest values kept, or its blocks with the largest norms.

        Without ``sparsity`` all nonzeros are kept.
        """
        weight, bias = _weight_and_bias(linear)
        form = weight_format(format, blocks)
        if sparsity is None and density is None:
            pattern = masked_pattern(weight, (weight.shape[0], weight.shape[1]), form)
        else:
            pattern = largest_pattern(weight, chosen_density(sparsity, density), form)
        return cls.from_weight(sparse_of(pattern, values_at(weight, pattern)), bias)

    @classmethod
    def from_mask(
        cls, linear: torch.nn.Linear | torch.Tensor, mask: torch.Tensor, *, format: str | Format = "csr"
    ) -> SparseLinear:
        """A layer, or a weight, at the places where ``mask`` is not zero; zeros of the weight stay there."""
        weight, bias = _weight_and_bias(linear)
        pattern = masked_pattern(mask, (weight.shape[0], weight.shape[1]), weight_format(format))
        return cls.from_weight(sparse_of(pattern, values_at(weight, pattern)), bias)

    # use ---------------------------------------------------------------------------------------------

    @property
    def weight(self) -> SparseTensor:
        """The weight, connected to ``values``: a new tensor each time, so change ``values``, not this one."""
        if self.values.shape != (self.pattern.size,):
            raise ShapeError(
                f"values has shape {tuple(self.values.shape)}, but the weight has {self.pattern.size} "
                "entries; change both with rewire"
            )
        return sparse_of(self.pattern, self.values)

    @property
    def nnz(self) -> int:
        """How many values the weight stores."""
        return self.pattern.size

    @property
    def density(self) -> float:
        """The share of the weight that is stored."""
        return self.nnz / max(self.out_features * self.in_features, 1)

    @property
    def format(self) -> Format:
        """How the weight is stored."""
        return self.pattern.format

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``input``, dense or sparse, whose last dimension has the features."""
        if not torch.compiler.is_compiling() and self.seal._version != self._seen:
            self._check_seal()
        if input.shape[-1:] != (self.in_features,):
            raise ShapeError(
                f"the input has shape {tuple(input.shape)}, but the layer takes {self.in_features} features"
            )
        if type(input) is torch.Tensor and is_plain_inference(input, self.values, self.bias):
            return linear(input, self._as_it_is(), self.bias)  # type: ignore[no-any-return]
        found: torch.Tensor = F.linear(input, self.weight, self.bias)
        return found

    def _as_it_is(self) -> SparseTensor:
        """The weight, made once for the same places and memory of values, where nobody keeps track."""
        known: SparseTensor | None = self.__dict__.get("_known")
        if known is not None:
            storage = known.storage
            if storage.pattern is self.pattern and storage.values.is_set_to(self.values):
                return known
        weight = self.weight
        made = self.__dict__["_known"] = SparseTensor(Storage(weight.storage.pattern, self.values.detach()))
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_known"}

    def _check_seal(self) -> None:
        """Another process has sent its seal, if not its pattern."""
        if int(self.seal) != self._sealed:
            raise CallError(
                "this process has other places in its sparse weight than the first one, so their values do "
                "not belong together; seed all processes alike (torch.manual_seed) before the layer is made "
                "or rewired, or load one state_dict in all of them"
            )
        self._seen = self.seal._version

    def reset_parameters(self) -> None:
        """New values at the same places, as in a new layer."""
        with torch.no_grad():
            self.values.copy_(initial_values(self.pattern, self.values.dtype))
            if self.bias is not None:
                self.bias.copy_(initial_bias(self.pattern, self.bias.dtype))

    def to_dense(self) -> torch.nn.Linear:
        """A plain layer with the same weight."""
        made = torch.nn.Linear(
            self.in_features, self.out_features, self.bias is not None, dtype=self.values.dtype
        )
        with torch.no_grad():
            made.weight.copy_(self.weight.detach().to_dense())
            if self.bias is not None:
                made.bias.copy_(self.bias)
        return made

    # other places ------------------------------------------------------------------------------------

    def rewire(
        self,
        weight: SparseTensor | torch.Tensor | Pattern,
        *,
        new: float | None = None,
        optimizer: Any = None,
    ) -> torch.Tensor:
        """Learn at other places from now on: those of ``weight``.

        With ``new`` values stay where they are, and places that are new begin with that value; else the
        values are those of ``weight``. ``values`` stays the same parameter, also if it has another number of
        elements. What ``optimizer``, one or several, keeps for each value moves with it, as does a gradient;
        for new places it is zero. Returns for each entry where it was stored before, or -1.
        """
        form = self.pattern.format
        pattern, values = _places(weight, (self.out_features, self.in_features), form)
        if values is None and new is None:
            raise ArgumentError(
                "a pattern or a mask has no values; give new=, the value of places that are new"
            )
        before = self.pattern
        places = old_places(before, pattern)
        with torch.no_grad():
            found = carried(self.values, places, new) if new is not None else values
            assert found is not None
            gradient, self.values.grad = self.values.grad, None
            if found.numel() == self.values.numel():
                self.values.copy_(found)
            else:
                self.values.data = found.to(self.values.dtype).clone()
            if gradient is not None:
                self.values.grad = carried(gradient, places)
            if optimizer is not None:
                carry_state(optimizer, self.values, places, before.size)
        if not same_places(before, pattern):
            self._set(pattern)
        return places

    # Python ------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, format={self.format}, nnz={self.nnz}, density={self.density:.2%}"
        )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, array in pattern_to(self.pattern).items():
            destination[f"{prefix}pattern.{name}"] = array

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
        start = f"{prefix}pattern."
        arrays = {name[len(start) :]: state_dict[name] for name in list(state_dict) if name.startswith(start)}
        plain = {name: value for name, value in state_dict.items() if not name.startswith(start)}
        if arrays:
            try:
                pattern = pattern_from(arrays, (self.out_features, self.in_features), self.pattern.device)
            except (ValueError, IndexError, TypeError) as error:
                error_msgs.append(f"the places of {prefix}weight: {error}")
                return
            values = plain.get(f"{prefix}values")
            if not isinstance(values, torch.Tensor) or tuple(values.shape) != (pattern.size,):
                error_msgs.append(
                    f"{prefix}values must come with one value for each of {pattern.size} places"
                )
                return
            self._take(pattern)
        elif f"{prefix}values" in plain:
            missing_keys.append(f"{start}format")
        elif isinstance(plain.get(f"{prefix}weight"), torch.Tensor):
            plain[f"{prefix}values"] = self._from_weight(plain.pop(f"{prefix}weight"), prefix, error_msgs)
        super()._load_from_state_dict(
            plain, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _take(self, pattern: Pattern) -> None:
        """Another pattern, whose values are loaded next."""
        if same_places(self.pattern, pattern):
            return
        if pattern.size != self.values.numel():
            self.values.data = self.values.new_zeros(pattern.size)
            self.values.grad = None
        self._set(pattern)

    def _from_weight(self, weight: torch.Tensor, prefix: str, error_msgs: list[str]) -> torch.Tensor:
        """The values of a whole weight: those of a sparse one with its places, of a dense one at ours."""
        if tuple(weight.shape) != (self.out_features, self.in_features):
            error_msgs.append(
                f"{prefix}weight has shape {tuple(weight.shape)}, but the layer has "
                f"{self.out_features} outputs and {self.in_features} inputs"
            )
            return self.values
        if isinstance(weight, SparseTensor):
            weight = stored_as(weight, self.format)
            self._take(weight.storage.pattern)
            return weight.storage.values
        return values_at(weight.detach(), self.pattern)


def _weight_and_bias(linear: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    if isinstance(linear, torch.nn.Module):
        weight, bias = getattr(linear, "weight", None), getattr(linear, "bias", None)
    else:
        weight, bias = linear, None
    if not isinstance(weight, torch.Tensor) or isinstance(bias, bool):
        raise OperandError(f"give a torch.nn.Linear or its weight, not a {type(linear).__name__}")
    if weight.dim() != 2:
        raise ShapeError(f"a weight is a matrix (out_features, in_features), not {tuple(weight.shape)}")
    return weight.detach(), bias


def _places(given: Any, shape: tuple[int, int], form: Format) -> tuple[Pattern, torch.Tensor | None]:
    if isinstance(given, Pattern):
        if given.shape != shape or given.format != form:
            raise ShapeError(
                f"the pattern is a {given.format} of shape {given.shape}, but the weight a {form} of {shape}"
            )
        return given, None
    if isinstance(given, SparseTensor) and given.dtype != torch.bool:
        if tuple(given.shape) != shape:
            raise ShapeError(f"the weight has shape {shape}, not {tuple(given.shape)}")
        found = stored_as(given, form)
        return found.storage.pattern, found.storage.values
    return masked_pattern(given, shape, form), None
