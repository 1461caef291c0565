"""Functions of each element that take more than elements, or give more than one: on the stored values.

What they give for zero decides whether the result is sparse, as with all functions
(``ops.pointwise.elementwise``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scorch._src.ops.fallback import densely
from scorch._src.ops.pointwise.elementwise import filled
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor, with_values

aten = torch.ops.aten


def _mapped(name: str, self: SparseTensor, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """``function`` of every element; dense where it is not zero for zero."""
    values = function(self.storage.values)
    fill = function(self.storage.values.new_zeros(1))
    return with_values(self, values) if not bool(fill.any()) else filled(name, self, values, fill)


@implements(aten.isin.Tensor_Tensor)
def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """Whether each element is one of ``test_elements``."""
    if not isinstance(elements, SparseTensor):
        func = aten.isin.Tensor_Tensor
        return densely(func, (elements, test_elements), {"assume_unique": assume_unique, "invert": invert})
    known = test_elements.to_dense() if isinstance(test_elements, SparseTensor) else test_elements
    return _mapped("isin", elements, lambda values: torch.isin(values, known, invert=invert))


@implements(aten.isin.Tensor_Scalar)
def isin_number(
    elements: SparseTensor, test_element: Any, *, assume_unique: bool = False, invert: bool = False
) -> Any:
    return _mapped("isin", elements, lambda values: torch.isin(values, test_element, invert=invert))


@implements(aten.bucketize.Tensor)
def bucketize(self: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    """The number of the bucket that each element falls in."""
    bounds = boundaries.to_dense() if isinstance(boundaries, SparseTensor) else boundaries
    if not isinstance(self, SparseTensor):
        return torch.bucketize(self, bounds, out_int32=out_int32, right=right)
    return _mapped(
        "bucketize", self, lambda values: torch.bucketize(values, bounds, out_int32=out_int32, right=right)
    )


def _is_dense(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, SparseTensor)


@implements(aten.searchsorted.Tensor)
def searchsorted(sorted_sequence: Any, self: Any, **options: Any) -> Any:
    """Where each element would stand in a sorted list; in a list for each line it works on dense copies."""
    if isinstance(sorted_sequence, SparseTensor) or sorted_sequence.dim() != 1 or _is_dense(self):
        return densely(aten.searchsorted.Tensor, (sorted_sequence, self), options)
    return _mapped(
        "searchsorted", self, lambda values: aten.searchsorted.Tensor(sorted_sequence, values, **options)
    )


@implements(aten.frexp.Tensor)
def frexp(self: SparseTensor) -> Any:
    """Mantissa and exponent, both zero for zero."""
    mantissa, exponent = torch.frexp(self.storage.values)
    return with_values(self, mantissa), with_values(self, exponent)
