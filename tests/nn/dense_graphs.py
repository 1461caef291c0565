"""The graph layers in plain dense torch, from their formulas."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def counts(edge_index: Tensor, rows: int, columns: int) -> Tensor:
    """How often each (target, source) is an edge."""
    found = torch.zeros(rows, columns, dtype=torch.float64)
    return found.index_put_(
        (edge_index[1], edge_index[0]), torch.ones((), dtype=torch.float64), accumulate=True
    )


def with_loops(A: Tensor, weight: float = 1.0) -> Tensor:
    """Each node once its own source."""
    size = min(A.shape)
    loops = torch.zeros_like(A)
    loops[range(size), range(size)] = weight
    return torch.where(torch.eye(*A.shape, dtype=torch.bool), loops, A)


def gcn(layer: torch.nn.Module, x: Tensor, A: Tensor) -> Tensor:
    """``A`` has its loops."""
    degree = A.sum(1)
    factor = torch.where(degree == 0, 0.0, degree.pow(-0.5))
    out = (factor[:, None] * A * factor) @ (x @ layer.lin.weight.t())
    return out if layer.bias is None else out + layer.bias


def neighbours(x: Tensor, A: Tensor, how: str) -> Tensor:
    if how == "sum":
        return A @ x
    if how == "mean":
        return A @ x / A.sum(1, keepdim=True).clamp(min=1)
    found = torch.where((A > 0).unsqueeze(2), x, -torch.inf).amax(1)
    return torch.where((A > 0).any(1, keepdim=True), found, 0.0)


def sage(layer: torch.nn.Module, x: Tensor, root: Tensor, A: Tensor) -> Tensor:
    if layer.project:
        x = layer.lin(x).relu()
    out = layer.lin_l(neighbours(x, A, layer.aggr))
    if layer.root_weight:
        out = out + layer.lin_r(root)
    return F.normalize(out, dim=-1) if layer.normalize else out


def gin(layer: torch.nn.Module, x: Tensor, A: Tensor) -> Tensor:
    return layer.nn(A @ x + (1 + layer.eps) * x)


def gat(layer: torch.nn.Module, x: Tensor, root: Tensor, A: Tensor) -> Tensor:
    """``A`` has its loops."""
    shape = (-1, layer.heads, layer.out_channels)
    features = (layer.lin or layer.lin_src)(x).view(shape)
    others = (layer.lin or layer.lin_dst)(root).view(shape)
    z = (features * layer.att_src).sum(-1) + (others * layer.att_dst).sum(-1).unsqueeze(1)
    weights = F.leaky_relu(z, layer.negative_slope).exp() * A.unsqueeze(2)
    total = weights.sum(1, keepdim=True)
    out = torch.einsum("ijh,jhc->ihc", weights / torch.where(total == 0, 1.0, total), features)
    out = out.flatten(1) if layer.concat else out.mean(1)
    if layer.res is not None:
        out = out + layer.res(root)
    return out if layer.bias is None else out + layer.bias
