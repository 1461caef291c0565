"""Which operators of torch are tried: those that torch tests itself, with the samples it has for them."""

from __future__ import annotations

import re
from typing import Any

import torch

FORMATS = ("csr", "csc", "coo", "dcsr", "bsr(2,2)", "csf")
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "bool": torch.bool,
}
VARIANTS = {"first": "the first tensor is sparse", "all": "all tensors are sparse"}

# Left out, with the reason: names that match.
LEFT_OUT = {
    "internal to PyTorch": r"_\w+(?<!__)|torch\..*|jiterator\w*",
    "results are uninitialized memory": r"(new_)?empty\w*|resize_\w*",
    "random numbers are drawn for stored elements only": (
        r"rand(n|int)?_like|normal|uniform|bernoulli|nn\.functional\.(dropout|rrelu)"
    ),
}
PRODUCTS, TRANSFORMS = "Products and linear algebra", "Fourier transforms"
PRODUCT_NAMES = """
__rmatmul__ addbmm addmm addmm_decomposed addmv addr baddbmm bmm cdist cholesky cholesky_inverse
cholesky_solve cross dot einsum geqrf inner inverse kron logdet lu lu_solve lu_unpack matmul matrix_exp
mm mv ormqr outer pca_lowrank pinverse qr svd svd_lowrank tensordot triangular_solve vdot
"""
REDUCTIONS = """
allclose aminmax bincount cummax cummin cumprod cumsum cumulative_trapezoid dist equal hash_tensor histc
histogram histogramdd kthvalue logcumsumexp logsumexp max median min mode nanmedian nanquantile norm
quantile std_mean sum_to_size trace trapezoid trapz unique unique_consecutive var_mean
"""
INDEXING = """
__getitem__ argsort argwhere as_strided_scatter bucketize diagonal_scatter gather index_add index_copy
index_fill index_put index_reduce index_select isin masked_fill masked_scatter masked_select msort
nonzero nonzero_static put scatter scatter_add scatter_reduce searchsorted select_scatter slice_scatter
sort take take_along_dim topk where
"""
CREATION = """
arange bernoulli broadcast_shapes cauchy complex exponential eye fill full full_like geometric linspace
log_normal logspace multinomial normal ones ones_like polar rand_like randint randint_like randn
randn_like scalar_tensor tril_indices triu_indices uniform vander zero_ zeros zeros_like
"""


class MissingPackageError(Exception):
    """A package that torch's samples need is not installed."""


def all_operators() -> dict[str, list[Any]]:
    """torch's OpInfos by the name of their operator, without those that are left out."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise MissingPackageError(
            f"torch's samples of its operators need the package {error.name!r}: pip install expecttest"
        ) from error
    found: dict[str, list[Any]] = {}
    for info in op_db:
        has_dtype = any(info.supports_dtype(dtype, "cpu") for dtype in DTYPES.values())
        if has_dtype and left_out(info.name) is None:
            found.setdefault(info.name, []).append(info)
    return found


def left_out(name: str) -> str | None:
    """Why an operator is not tried."""
    return next((reason for reason, pattern in LEFT_OUT.items() if re.fullmatch(pattern, name)), None)


def family(info: Any) -> str:
    """The heading of the page that an operator stands under."""
    name, kind = info.name, type(info).__name__
    if name.startswith("nn.functional.") or name in ("softmax", "log_softmax") or name.startswith("native_"):
        return "Neural networks"
    if name.startswith("linalg.") or name in PRODUCT_NAMES.split():
        return PRODUCTS
    if name.startswith(("fft.", "stft", "istft")) and "shift" not in name:
        return TRANSFORMS
    if name.startswith("masked."):
        return "Masked reductions"
    if kind == "ReductionOpInfo" or name in REDUCTIONS.split() or name.startswith("argm"):
        return "Reductions and cumulative sums"
    if name in INDEXING.split():
        return "Indexing and sorting"
    if name in CREATION.split() or name.startswith(("new_", "signal.")):
        return "Creation"
    if kind == "UnaryUfuncInfo":
        return "Elementwise functions, unary"
    if kind == "BinaryUfuncInfo" or name in ("addcmul", "addcdiv", "lerp", "clamp", "logical_not"):
        return "Elementwise functions, binary"
    return "Shapes and copies"
