"""torch_sparse's public functions and class, on Scorch: change the import and the program runs.

Write ``from scorch.compat.torch_sparse import SparseTensor, matmul``, or call
``scorch.compat.torch_sparse.install()`` before you import programs that you do not want to change.
"""

from scorch.compat.torch_sparse.arithmetic import add as add
from scorch.compat.torch_sparse.arithmetic import add_ as add_
from scorch.compat.torch_sparse.arithmetic import add_nnz as add_nnz
from scorch.compat.torch_sparse.arithmetic import add_nnz_ as add_nnz_
from scorch.compat.torch_sparse.arithmetic import mul as mul
from scorch.compat.torch_sparse.arithmetic import mul_ as mul_
from scorch.compat.torch_sparse.arithmetic import mul_nnz as mul_nnz
from scorch.compat.torch_sparse.arithmetic import mul_nnz_ as mul_nnz_
from scorch.compat.torch_sparse.arrange import __narrow_diag__ as __narrow_diag__
from scorch.compat.torch_sparse.arrange import cat as cat
from scorch.compat.torch_sparse.arrange import fill_diag as fill_diag
from scorch.compat.torch_sparse.arrange import get_diag as get_diag
from scorch.compat.torch_sparse.arrange import index_select as index_select
from scorch.compat.torch_sparse.arrange import index_select_nnz as index_select_nnz
from scorch.compat.torch_sparse.arrange import masked_select as masked_select
from scorch.compat.torch_sparse.arrange import masked_select_nnz as masked_select_nnz
from scorch.compat.torch_sparse.arrange import narrow as narrow
from scorch.compat.torch_sparse.arrange import permute as permute
from scorch.compat.torch_sparse.arrange import remove_diag as remove_diag
from scorch.compat.torch_sparse.arrange import select as select
from scorch.compat.torch_sparse.arrange import set_diag as set_diag
from scorch.compat.torch_sparse.arrange import t as t
from scorch.compat.torch_sparse.convert import coalesce as coalesce
from scorch.compat.torch_sparse.convert import eye as eye
from scorch.compat.torch_sparse.convert import from_scipy as from_scipy
from scorch.compat.torch_sparse.convert import from_torch_sparse as from_torch_sparse
from scorch.compat.torch_sparse.convert import spadd as spadd
from scorch.compat.torch_sparse.convert import spmm as spmm
from scorch.compat.torch_sparse.convert import spspmm as spspmm
from scorch.compat.torch_sparse.convert import to_scipy as to_scipy
from scorch.compat.torch_sparse.convert import to_torch_sparse as to_torch_sparse
from scorch.compat.torch_sparse.convert import transpose as transpose
from scorch.compat.torch_sparse.install import install as install
from scorch.compat.torch_sparse.install import uninstall as uninstall
from scorch.compat.torch_sparse.matmul import matmul as matmul
from scorch.compat.torch_sparse.reduce import max as max
from scorch.compat.torch_sparse.reduce import mean as mean
from scorch.compat.torch_sparse.reduce import min as min
from scorch.compat.torch_sparse.reduce import reduction as reduction
from scorch.compat.torch_sparse.reduce import sum as sum
from scorch.compat.torch_sparse.sample import partition as partition
from scorch.compat.torch_sparse.sample import random_walk as random_walk
from scorch.compat.torch_sparse.sample import reverse_cuthill_mckee as reverse_cuthill_mckee
from scorch.compat.torch_sparse.sample import saint_subgraph as saint_subgraph
from scorch.compat.torch_sparse.sample import sample as sample
from scorch.compat.torch_sparse.sample import sample_adj as sample_adj
from scorch.compat.torch_sparse.storage import SparseStorage as SparseStorage
from scorch.compat.torch_sparse.tensor import SparseTensor as SparseTensor

__version__ = "0.6.18"  # of torch_sparse, whose names these are
__all__ = [name for name in globals() if name[0] != "_" and callable(globals()[name])]
