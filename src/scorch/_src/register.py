"""Import every module that registers PyTorch functions or hooks, in the order of the layers."""

# ruff: noqa: F401

from scorch._src.backends.cpu import backend as cpu_backend
from scorch._src.backends.cuda import backend as cuda_backend
from scorch._src.backends.interpreter import executable as interpreter
from scorch._src.compile import capture, layer_rules, pointwise_rules, product_rules
from scorch._src.io import datasets, pickling
from scorch._src.nn import module_mixin, optimizer_hooks
from scorch._src.nn.averaged_models import AveragedModelMixin
from scorch._src.nn.data_parallel import DataParallelMixin
from scorch._src.ops import conv, embedding_bag, fallback, losses, torch_sparse
from scorch._src.ops.attention import sdpa
from scorch._src.ops.linalg import eigen, solve
from scorch._src.ops.movement import index, join, movement, rows, scatter, shape
from scorch._src.ops.pointwise import arithmetic, complex_parts, random_like, sets, zero_preserving
from scorch._src.ops.products import linear, matmul, products
from scorch._src.ops.reduction import (
    composed,
    count,
    maskable,
    reduce,
    scan,
    softmax,
)
from scorch._src.ops.sorting import sort
from scorch._src.tensor import (
    autograd,
    call_errors,
    in_place,
    map_values,
    metadata,
    methods,
    numpy_operators,
    operators,
    saved_versions,
    torch_methods,
    traced,
    write_checks,
)
from scorch._src.tensor.transforms import functorch, gradcheck, take_gradients
from scorch._src.tensor.views import link, merge

module_mixin.install(DataParallelMixin, AveragedModelMixin)
optimizer_hooks.install()
