"""Scorch: PyTorch operations on sparse tensors of any order, in any storage format.

``einsum`` and ``evaluate`` turn an expression into one generated kernel; ``explain`` shows it. Every name of
torch is here too, so that a program may say ``import scorch as torch``.
"""

from typing import TYPE_CHECKING, Any

from scorch import errors, namespace
from scorch.doctor import doctor
from scorch.explain import explain
from scorch.explanation import Explanation
from scorch.formats import Format
from scorch.nn.report import ModelReport, report
from scorch.nn.sparsify import sparsify
from scorch.ops import compile, einsum, evaluate, grad_topk, maskable, rearrange
from scorch.ops.topk import topk_sparse
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
from scorch.tensor.create import (
    arange,
    as_tensor,
    empty,
    eye,
    full,
    ones,
    ones_like,
    rand,
    randint,
    randn,
    zeros,
    zeros_like,
)
from scorch.tensor.draw import draw
from scorch.tensor.files import load, save
from scorch.tensor.frames import unread_all
from scorch.tensor.graphs import from_networkx, to_networkx
from scorch.tensor.handlers import to_dlpack
from scorch.tensor.interop import from_scipy
from scorch.tensor.like import empty_like, full_like, rand_like, randint_like, randn_like
from scorch.tensor.sequences import (
    asarray,
    bernoulli,
    diag,
    diag_embed,
    diagflat,
    from_numpy,
    linspace,
    logspace,
    normal,
    randperm,
)
from scorch.tensor.spy import spy

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """All other names are torch's: see ``namespace``."""


__version__ = "0.1.0"

__all__ = [
    "Explanation",
    "Format",
    "ModelReport",
    "SparseTensor",
    "arange",
    "as_tensor",
    "asarray",
    "bernoulli",
    "compile",
    "diag",
    "diag_embed",
    "diagflat",
    "doctor",
    "draw",
    "einsum",
    "empty",
    "empty_like",
    "errors",
    "evaluate",
    "explain",
    "eye",
    "from_coordinates",
    "from_edge_index",
    "from_networkx",
    "from_numpy",
    "from_scipy",
    "from_torch",
    "full",
    "full_like",
    "grad_topk",
    "linspace",
    "load",
    "logspace",
    "normal",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "rearrange",
    "report",
    "save",
    "settings",
    "sparse_bsc_tensor",
    "sparse_bsr_tensor",
    "sparse_compressed_tensor",
    "sparse_coo_tensor",
    "sparse_csc_tensor",
    "sparse_csr_tensor",
    "sparsify",
    "spy",
    "tensor",
    "to_dlpack",
    "to_networkx",
    "topk_sparse",
    "zeros",
    "zeros_like",
]

globals().update(maskable.FUNCTIONS)  # sum, mean, amax ...: torch's, with masked= added
__all__ += sorted(maskable.FUNCTIONS)

unread_all(globals()[name] for name in __all__)
namespace.install(__all__)
