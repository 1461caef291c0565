"""A pytest plugin: what the tests of torch_sparse import besides torch_sparse.

That is torch_scatter, a compiled package, which is replaced by the one function of it that they call.
"""

from __future__ import annotations

import sys
from types import ModuleType

import torch
from torch import Tensor

import tools.upstream.alias  # noqa: F401  (before anything imports torch_sparse)


def scatter(src: Tensor, index: Tensor, dim: int = -1, reduce: str = "sum") -> Tensor:
    """Reduce the slices of ``src`` along ``dim`` that have the same ``index``; 0 where there is none."""
    shape = list(src.shape)
    shape[dim] = int(index.max()) + 1
    spread = index.reshape(-1, *(1,) * (-1 - dim)).expand_as(src)
    how = {"sum": "sum", "add": "sum", "mean": "mean", "min": "amin", "max": "amax"}[reduce]
    empty = torch.zeros(shape, dtype=src.dtype)
    # a copy, because tests change the result in place before they differentiate
    return empty.scatter_reduce(dim, spread, src, how, include_self=False).clone()


torch_scatter = ModuleType("torch_scatter")
torch_scatter.__dict__.update(__version__="2.1.2", scatter=scatter)
sys.modules["torch_scatter"] = torch_scatter
