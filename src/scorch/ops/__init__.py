"""Torch functions as index expressions."""

from scorch.ops import matmul, softmax  # noqa: F401 - fill the table of torch functions
from scorch.ops.einsum import einsum
from scorch.ops.statement import evaluate

__all__ = ["einsum", "evaluate"]
