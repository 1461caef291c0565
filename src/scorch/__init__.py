"""Scorch: PyTorch operations on sparse tensors of any order, in any storage format.

``einsum`` and ``evaluate`` turn an expression into one generated kernel; ``explain`` shows it.
"""

from scorch import errors
from scorch.formats import Format
from scorch.ops import einsum, evaluate
from scorch.settings import settings
from scorch.tensor import SparseTensor

__version__ = "0.1.0"

__all__ = ["Format", "SparseTensor", "einsum", "errors", "evaluate", "settings"]
