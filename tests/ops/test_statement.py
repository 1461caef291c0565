"""Expressions on tensors: evaluate in its corners."""

import pytest
import torch

import scorch


@pytest.mark.parametrize("operator", ["<", "<=", ">", ">=", "==", "!="])
@pytest.mark.parametrize(("dtype", "number"), [(torch.uint8, -1), (torch.uint8, 256), (torch.int8, 200)])
def test_numbers_are_compared_in_the_type_of_the_tensor(operator, dtype, number):
    """-1 is 255 as uint8, so that zeros, stored or not, are smaller."""
    dense = torch.tensor([0, 1, 0, 100], dtype=dtype)
    text = f"y[i] = B[i] {operator} {number}"
    wanted = scorch.evaluate(text, B=dense)
    found = scorch.evaluate(text, B=scorch.from_torch(dense, format="s"), format="dense")
    assert torch.equal(found, wanted)
