"""Torch functions as index expressions."""

from scorch.ops import (  # noqa: F401 - they fill the tables of functions and operators
    cumulate,
    functional,
    generic,
    index,
    like,
    matmul,
    products,
    quick,
    reduce,
    shape,
    softmax,
)
from scorch.ops.einsum import einsum
from scorch.ops.statement import evaluate

__all__ = ["einsum", "evaluate"]
