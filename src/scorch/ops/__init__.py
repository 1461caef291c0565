"""Torch functions as index expressions."""

from scorch._src.tensor import in_place  # noqa: F401
from scorch.ops import (  # noqa: F401 - they fill the tables of functions and operators
    attention,
    capture,
    complex_parts,
    counts,
    cross_entropy,
    cumulate,
    direct,
    distances,
    dropout,
    embedding,
    functional,
    generic,
    index,
    join,
    learned_composed,
    learned_functions,
    learned_reductions,
    like,
    losses,
    maskable,
    matmul,
    moving,
    normalization,
    on_values,
    optimizers,
    order,
    padding,
    products,
    quick,
    record_elementwise,
    record_products,
    reduce,
    scatter,
    sets,
    shape,
    softmax,
    sparse_functions,
    windows,
)
from scorch.ops.compile import compile
from scorch.ops.einsum import einsum
from scorch.ops.grad_topk import grad_topk
from scorch.ops.linalg import learned_solve, norms, solve  # noqa: F401
from scorch.ops.rearrange import rearrange
from scorch.ops.statement import evaluate

__all__ = ["compile", "einsum", "evaluate", "grad_topk", "rearrange"]

optimizers.install()
