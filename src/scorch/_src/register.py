"""Import every module that registers functions of torch, in the order of the layers."""

from scorch._src.backends.cpu import backend as cpu_backend  # noqa: F401
from scorch._src.backends.interpreter import executable as interpreter  # noqa: F401
from scorch._src.compile import (  # noqa: F401
    capture,
    pointwise_rules,
    product_rules,
)
from scorch._src.io import datasets, pickling  # noqa: F401
from scorch._src.nn import optimizer_hooks
from scorch._src.ops import (  # noqa: F401
    conv,
    embedding_bag,
    fallback,
    losses,
    torch_sparse,
)
from scorch._src.ops.attention import sdpa  # noqa: F401
from scorch._src.ops.linalg import eigen, solve  # noqa: F401
from scorch._src.ops.movement import index, join, movement, scatter, shape  # noqa: F401
from scorch._src.ops.pointwise import (  # noqa: F401
    arithmetic,
    complex_parts,
    random_like,
    sets,
    zero_preserving,
)
from scorch._src.ops.products import linear, matmul, products  # noqa: F401
from scorch._src.ops.reduction import (  # noqa: F401
    composed,
    count,
    maskable,
    reduce,
    scan,
    softmax,
)
from scorch._src.ops.sorting import sort  # noqa: F401
from scorch._src.tensor import (  # noqa: F401
    autograd,
    call_errors,
    in_place,
    metadata,
    methods,
    numpy_operators,
    saved_versions,
    torch_methods,
    traced,
    views,
    write_checks,
)
from scorch._src.tensor.transforms import functorch, gradcheck  # noqa: F401

optimizer_hooks.install()
