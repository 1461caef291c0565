"""Torch functions as index expressions."""

from scorch.ops import (  # noqa: F401 - they fill the tables of functions and operators
    cumulate,
    functional,
    generic,
    index,
    matmul,
    norms,
    on_values,
    padding,
    products,
    quick,
    reduce,
    scatter,
    shape,
    softmax,
)
from scorch.ops.einsum import einsum
from scorch.ops.statement import evaluate

__all__ = ["einsum", "evaluate"]
