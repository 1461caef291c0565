"""``scorch.linalg``: all of ``torch.linalg``, and methods for large sparse matrices that torch lacks."""

from scorch._src.ops.linalg.eigen import eigsh
from scorch._src.ops.linalg.krylov import cg, gmres

__all__ = ["cg", "eigsh", "gmres"]
