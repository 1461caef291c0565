"""Torch functions as index expressions."""

from scorch.ops import matmul  # noqa: F401 - fills the table of torch functions
from scorch.ops.einsum import einsum
from scorch.ops.statement import evaluate

__all__ = ["einsum", "evaluate"]
