"""Scorch: PyTorch operations on sparse tensors of any order, in any storage format.

``einsum`` and ``evaluate`` turn an expression into one generated kernel; ``explain`` shows it.
"""

from scorch import errors
from scorch.explain import explain
from scorch.formats import Format
from scorch.ops import einsum, evaluate
from scorch.report import Explanation
from scorch.settings import settings
from scorch.tensor import SparseTensor
from scorch.tensor.construct import (
    from_coordinates,
    from_edge_index,
    from_torch,
    sparse_bsc_tensor,
    sparse_bsr_tensor,
    sparse_compressed_tensor,
    sparse_coo_tensor,
    sparse_csc_tensor,
    sparse_csr_tensor,
    tensor,
)
from scorch.tensor.draw import draw
from scorch.tensor.files import load, save
from scorch.tensor.graphs import from_networkx, to_networkx
from scorch.tensor.interop import from_scipy
from scorch.tensor.spy import spy

__version__ = "0.1.0"

__all__ = [
    "Explanation",
    "Format",
    "SparseTensor",
    "draw",
    "einsum",
    "errors",
    "evaluate",
    "explain",
    "from_coordinates",
    "from_edge_index",
    "from_networkx",
    "from_scipy",
    "from_torch",
    "load",
    "save",
    "settings",
    "sparse_bsc_tensor",
    "sparse_bsr_tensor",
    "sparse_compressed_tensor",
    "sparse_coo_tensor",
    "sparse_csc_tensor",
    "sparse_csr_tensor",
    "spy",
    "tensor",
    "to_networkx",
]
