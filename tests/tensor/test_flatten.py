"""A sparse tensor taken apart into arrays, and put together again."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.nn.utils.parametrize as parametrize
from torch.utils._python_dispatch import is_traceable_wrapper_subclass, transform_subclass

import scorch
from scorch import Format, SparseTensor
from scorch._src.storage.storage import Storage
from scorch._src.tensor.flatten import read_spelled, spelled


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dcsr", "bsr(2,2)"])
def test_arrays_make_the_same_tensor_with_the_same_pattern(format: str) -> None:
    S: Any = scorch.rand(6, 4, density=0.4, format=format)
    assert is_traceable_wrapper_subclass(S)
    names, context = S.__tensor_flatten__()
    arrays = {name: getattr(S, name) for name in names}
    again = SparseTensor.__tensor_unflatten__(arrays, context, S.shape, S.stride())
    assert again.storage.pattern is S.storage.pattern
    copied = transform_subclass(S, lambda _, array: array.clone())
    assert copied.storage.pattern is not S.storage.pattern
    assert copied.storage.pattern.counts == S.storage.pattern.counts
    torch.testing.assert_close(copied.to_dense(), S.to_dense())


def test_known_patterns_are_forgotten_with_their_tensors() -> None:
    from scorch._src.tensor import flatten

    S: Any = scorch.rand(6, 4, density=0.4, format="csr")
    gc.collect()
    before = len(flatten._patterns)
    S.__tensor_flatten__()
    assert len(flatten._patterns) == before + 1
    del S
    gc.collect()
    assert len(flatten._patterns) == before


def test_a_tensor_has_the_arrays_of_its_levels_only() -> None:
    S = scorch.rand(6, 4, density=0.4, format="csr")
    assert not hasattr(S, "_pos0") and not hasattr(S, "_crd5") and not hasattr(S, "anything")
    assert S._crd1 is S.storage.pattern.crd[1]  # type: ignore[union-attr]


@pytest.mark.parametrize("format", ["csr", "csc", "bsr(2,3)", Format("sd", order=(1, 0))])
def test_formats_are_read_as_they_are_spelled(format: str | Format) -> None:
    form = Format(format)
    text = spelled(form)
    assert text is not None and read_spelled(text) == form


def test_a_sparse_parameter_can_be_parametrized() -> None:
    class Double(torch.nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight * 2

    linear, weight = torch.nn.Linear(5, 6), scorch.rand(6, 5, density=0.4, format="csr")
    linear.weight = torch.nn.Parameter(weight)
    parametrize.register_parametrization(linear, "weight", Double())
    x = torch.randn(3, 5)
    wanted = x @ (2 * weight.to_dense()).T + linear.bias
    torch.testing.assert_close(linear(x), wanted)
    linear(x).sum().backward()
    assert isinstance(linear.parametrizations.weight.original.grad, SparseTensor)


def test_a_storage_has_its_values_without_gaps() -> None:
    made: Any = scorch.eye(4, format="csr")
    pattern = made.storage.pattern
    S = SparseTensor(Storage(pattern, torch.tensor(2.0).expand(4)))
    assert S.storage.values.stride() == (1,)
    torch.testing.assert_close(S @ torch.ones(4), torch.full((4,), 2.0))
    S.storage.take(pattern, torch.arange(8.0)[::2])
    torch.testing.assert_close(S @ torch.ones(4), torch.tensor([0.0, 2, 4, 6]))
