"""What all layers with sparse weights have: their values, how many are stored, and hints for other names.

A layer stores each of its matrices in a ``SparseLinear``, under a name of its own: ``kernels`` of a
convolution, ``in_proj`` and ``out_proj`` of attention. A ``SparseLinear`` is its own only matrix.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import parametrize

from scorch._src.formats import Format
from scorch._src.hint_tables import LAYER_HINTS
from scorch._src.name_hints import unknown_name
from scorch._src.nn.layer import KernelLayer
from scorch._src.nn.pattern import refuse_masks, refuse_parametrization, refuse_weight
from scorch._src.units import format_density

if TYPE_CHECKING:
    from scorch._src.nn.sparse_linear import SparseLinear

_REGISTER = parametrize.register_parametrization
MAX_FRAMES = 3  # between it and a layer
_OF_ONE_MATRIX = ("values", "pattern", "format", "weight", "rewire")


class ForeignConstructor:
    """A name of other libraries that is no constructor of a layer: reading it raises an error with a hint."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.__doc__ = f"Not an attribute; {LAYER_HINTS[name]}."

    def __get__(self, layer: Any, owner: type) -> Any:
        raise unknown_name(
            f"{owner.__name__!r} has no attribute {self.name!r}", self.name, LAYER_HINTS, tuple
        )


class SparseLayer(KernelLayer):
    """Base class of layers with sparse weights."""

    from_linear = ForeignConstructor("from_linear")
    from_pretrained = ForeignConstructor("from_pretrained")

    def matrices(self) -> dict[str, SparseLinear]:
        """Return the matrices of the layer by name; that of a ``SparseLinear`` has an empty name."""
        return {name: child for name, child in self.named_children() if isinstance(child, SparseLayer)}  # type: ignore[misc]

    @property
    def nnz(self) -> int:
        """The number of stored elements of all weights."""
        return sum(matrix.nnz for matrix in self.matrices().values())

    @property
    def density(self) -> float:
        """The fraction of the weights that is stored."""
        matrices = self.matrices().values()
        return self.nnz / max(sum(matrix.out_features * matrix.in_features for matrix in matrices), 1)

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """Register a parameter that is no weight, which torch does before it looks for a property."""
        if name.endswith("_orig"):
            refuse_masks(self)
        if name.endswith("_g"):  # the first that weight_norm makes of a parameter
            refuse_parametrization(self)
        if "weight" in name:
            refuse_weight(self)
        super().register_parameter(name, param)

    def __getattr__(self, name: str) -> Any:
        try:
            return torch.nn.Module.__getattr__(self, name)
        except AttributeError:
            if name == "parametrizations":
                _refuse_parametrization(self)
            raise _missing(self, name) from None


class LayerOfOneMatrix(SparseLayer):
    """Base class of layers that store one matrix in a ``SparseLinear``."""

    @property
    def _matrix(self) -> SparseLinear:
        (matrix,) = self.matrices().values()
        return matrix

    @property
    def values(self) -> torch.nn.Parameter:
        """The trained values of the weight, one for each stored element."""
        return self._matrix.values

    @property
    def format(self) -> Format:
        """The format of the matrix that stores the weight."""
        return self._matrix.format


def _refuse_parametrization(layer: SparseLayer) -> None:
    """Refuse a parametrization, also of a bias: torch asks for this attribute before it registers one."""
    frame: Any = sys._getframe(2)
    for _ in range(MAX_FRAMES):
        if frame is not None and frame.f_code is _REGISTER.__code__:
            refuse_parametrization(layer)
        frame = frame and frame.f_back


def _missing(layer: SparseLayer, name: str) -> AttributeError:
    """Return the error for a name that a layer does not have, or that one of its properties did not find."""
    message = f"{type(layer).__name__!r} object has no attribute {name!r}"
    if name.startswith("_"):
        return AttributeError(message, name=name, obj=layer)
    matrices = layer.matrices()
    if name in _OF_ONE_MATRIX and matrices and "" not in matrices:
        return unknown_name(message, name, {name: f"use layer.{next(iter(matrices))}.{name}"}, tuple)
    return unknown_name(message, name, LAYER_HINTS, lambda: dir(layer))


def describe_storage(layer: SparseLayer) -> str:
    """Return how much a layer stores, for its ``repr``."""
    return f"nnz={layer.nnz}, density={format_density(layer.density)}"
