"""Base class of layers that save a sparse weight in a ``state_dict``, and load it from any version of one.

The pattern is saved as one tensor of integers (``saved_pattern``). The weight of a dense layer is loaded at
the places of the pattern; a sparse one brings its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from scorch._src.nn.optimizer_hooks import move_states
from scorch._src.nn.pattern import convert_weight, find_old_positions, is_same_pattern
from scorch._src.nn.weights.saved_pattern import (
    pattern_from_arrays,
    pattern_from_words,
    pattern_to_words,
    warn_of_save_pretrained,
)
from scorch._src.nn.weights.sparse_weight import SparseWeight, resize
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.autograd import values_at
from scorch._src.tensor.sparse_tensor import SparseTensor


class SavedWeight(SparseWeight):
    """A sparse weight that is saved with its pattern."""

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
            resize(self.values, self.values.new_empty(pattern.size))
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
            weight = convert_weight(weight, self.pattern.format)
            self._load_pattern(weight.storage.pattern)
            return weight.storage.values
        return values_at(weight.detach(), self.pattern)
