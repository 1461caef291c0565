"""Have torch call ``__torch_dispatch__`` without importing its distributed tensors.

Before it calls that of any subclass, torch asks whether a tensor is a distributed one, and imports them and
sympy for the question, which takes most of a second. It does not ask where a rule is registered for the
operator and the class. The rules registered here are ``__torch_dispatch__`` itself: first for the operators
that many functions are composed of, and for others when the function of their name is first called.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch

from scorch._src.tensor.sparse_tensor import SparseTensor

# fmt: off
COMMON = (
    "_conj", "_local_scalar_dense", "_reshape_alias", "_to_copy", "_unsafe_view", "abs", "add", "add_",
    "alias", "all", "any", "as_strided", "cat", "clone", "copy_", "detach", "diagonal", "div", "div_",
    "empty_like", "eq", "expand", "fill_", "index", "index_put_", "index_select", "mul", "mul_", "ne",
    "neg", "ones_like", "permute", "reshape", "select", "slice", "split", "split_with_sizes", "squeeze",
    "sub", "sub_", "sum", "t", "transpose", "unbind", "unsqueeze", "view", "zero_", "zeros_like",
)
COMPOSED_OF = {  # what PyTorch functions call under another name
    "allclose": ("isclose",), "argsort": ("sort",), "block_diag": ("constant_pad_nd",),
    "cdist": ("_cdist_forward", "_euclidean_dist"),
    "cosine_similarity": ("linalg_vector_norm", "clamp_min"), "diag": ("diag_embed", "diagonal_copy"),
    "fliplr": ("flip",), "flipud": ("flip",), "floordiv": ("floor_divide",), "invert": ("bitwise_not",),
    "isclose": ("isfinite", "logical_and", "le", "bitwise_or", "bitwise_and", "bitwise_or_", "bitwise_and_"),
    "layer_norm": ("native_layer_norm",), "linalg_norm": ("linalg_vector_norm",),
    "logical_and": ("bitwise_and",), "norm": ("linalg_vector_norm",), "pad": ("constant_pad_nd",),
    "rpow": ("pow",), "setitem": ("index_put",), "softmax": ("_softmax",), "tile": ("repeat",),
    "unique": ("_unique2",),
}
# fmt: on

_RULE: Any = vars(SparseTensor)["__torch_dispatch__"].__func__
_lock = threading.Lock()
_registered: set[str] = set()


@functools.cache
def register_common() -> None:
    """Register rules for the operators that most functions end in."""
    for name in COMMON:
        _register(name)


@functools.lru_cache(maxsize=4096)
def register_for(function: Any) -> None:
    """Register rules for the operators named like a PyTorch function or operator, and common ones."""
    register_common()
    name = getattr(function, "__name__", "")
    if name == "__get__":  # of an attribute
        name = getattr(function.__self__, "__name__", "")
    if name.startswith("__i") and name.endswith("__"):  # ``__iadd__``
        _register(f"{name[3:-2]}_")
    name = name.removeprefix("__").removesuffix("__").partition(".")[0]  # of an overload, too
    for operator in (name, *COMPOSED_OF.get(name, ())):
        _register(operator)


def _register(name: str) -> None:
    """Register the rule for all operators of ATen of a name; there may be none."""
    packet = getattr(torch.ops.aten, name, None) if name else None
    for overload in () if packet is None else packet.overloads():
        operator = f"aten::{name}" if overload == "default" else f"aten::{name}.{overload}"
        with _lock:
            if overload.endswith("out") or operator in _registered:
                continue
            _registered.add(operator)
        torch.library.register_torch_dispatch(operator, SparseTensor, _RULE)
