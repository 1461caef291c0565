"""torch_sparse's public functions and class, on Scorch: change the import and the program runs.

``from scorch.compat.torch_sparse import SparseTensor, matmul``, or for programs that are not to be changed
``sys.modules["torch_sparse"] = scorch.compat.torch_sparse`` before they are imported.
"""

from scorch.compat.torch_sparse.arithmetic import add, add_, add_nnz, add_nnz_, mul, mul_, mul_nnz, mul_nnz_
from scorch.compat.torch_sparse.arrange import (
    cat,
    fill_diag,
    get_diag,
    index_select,
    index_select_nnz,
    masked_select,
    masked_select_nnz,
    narrow,
    permute,
    remove_diag,
    select,
    set_diag,
    t,
)
from scorch.compat.torch_sparse.convert import (
    coalesce,
    eye,
    from_scipy,
    from_torch_sparse,
    spmm,
    spspmm,
    to_scipy,
    to_torch_sparse,
    transpose,
)
from scorch.compat.torch_sparse.matmul import matmul
from scorch.compat.torch_sparse.reduce import max, mean, min, reduction, sum
from scorch.compat.torch_sparse.sample import (
    partition,
    random_walk,
    reverse_cuthill_mckee,
    saint_subgraph,
    sample,
    sample_adj,
)
from scorch.compat.torch_sparse.storage import SparseStorage
from scorch.compat.torch_sparse.tensor import SparseTensor

__version__ = "0.6.18"  # of torch_sparse, whose names these are

__all__ = [
    "SparseStorage",
    "SparseTensor",
    "add",
    "add_",
    "add_nnz",
    "add_nnz_",
    "cat",
    "coalesce",
    "eye",
    "fill_diag",
    "from_scipy",
    "from_torch_sparse",
    "get_diag",
    "index_select",
    "index_select_nnz",
    "masked_select",
    "masked_select_nnz",
    "matmul",
    "max",
    "mean",
    "min",
    "mul",
    "mul_",
    "mul_nnz",
    "mul_nnz_",
    "narrow",
    "partition",
    "permute",
    "random_walk",
    "reduction",
    "remove_diag",
    "reverse_cuthill_mckee",
    "saint_subgraph",
    "sample",
    "sample_adj",
    "select",
    "set_diag",
    "spmm",
    "spspmm",
    "sum",
    "t",
    "to_scipy",
    "to_torch_sparse",
    "transpose",
]
