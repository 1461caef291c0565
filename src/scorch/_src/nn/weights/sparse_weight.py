"""Base class of layers that hold a sparse weight: its values, its pattern, and who has to know of both.

The values are a plain parameter with one element for each entry, so every optimizer,
``DistributedDataParallel``, gradient clipping and anything else that handles parameters works unchanged. The
pattern is no tensor. Graphs find it by its arrays; other processes are sent its fingerprint, as a buffer.
"""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.grad_state import untracked
from scorch._src.nn.pattern import compute_fingerprint
from scorch._src.nn.sparse_layer import SparseLayer
from scorch._src.storage.storage import Pattern, Storage, add_weak
from scorch._src.tensor.autograd import REWIRED
from scorch._src.tensor.flatten import remember
from scorch._src.tensor.layer_weight import KEPT, rewire_kept_weights
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import CallError, ShapeError

_CACHED = (
    "_inference_cache",
    "_last_call",
    "pattern_of_weight",
    KEPT,
)  # attributes that copies and files do without


class SparseWeight(SparseLayer):
    """A layer that has one matrix, by its stored values and their pattern."""

    in_features: int
    out_features: int
    values: torch.nn.Parameter
    bias: torch.nn.Parameter | None
    pattern: Pattern
    scales: torch.Tensor | None  # of the rows, where values are 8-bit integers
    seal: torch.Tensor  # the fingerprint of the pattern, by which processes detect that theirs differ
    _sealed: int  # the same on this process
    _seen: int  # the version of ``seal`` that was compared with it

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

    def _apply(self, fn: Any, recurse: bool = True) -> SparseWeight:
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


def resize(parameter: torch.Tensor, values: torch.Tensor) -> None:
    """Give a parameter another number of values.

    The node that adds up its gradients, which graphs keep alive, knows the old number; autograd replaces it
    where the dtype changes.
    """
    parameter.data = values.new_empty(
        0, dtype=torch.float64 if values.dtype == torch.float32 else torch.float32
    )
    parameter.data = values


def _version(seal: torch.Tensor) -> int:
    """Return how often a tensor was written to; -1 if it is one of inference, which do not count."""
    return -1 if seal.is_inference() else seal._version
