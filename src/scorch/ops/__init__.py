"""Torch functions as index expressions."""

from scorch.ops.einsum import einsum
from scorch.ops.statement import evaluate

__all__ = ["einsum", "evaluate"]
