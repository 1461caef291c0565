"""Cross entropy and negative log likelihood of sparse scores: (N, C), one row of scores for each sample.

The logarithm of a softmax is dense, but the loss needs one number of it a row:

    loss[i] = logsumexp(x[i,:]) - x[i, target[i]]

so that the cost follows the entries of x and the number of rows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.ops.fallback import as_dense, run_torch
from scorch._src.ops.products.matmul import mv
from scorch._src.tensor.autograd import by_formula
from scorch._src.tensor.check_call import check_call
from scorch._src.tensor.entries_autograd import differentiable_entries
from scorch._src.tensor.registry import implements, implements_differentiable
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import IndexRangeError, ShapeError

aten = torch.ops.aten
_REDUCTIONS = ("none", "mean", "sum")


@implements(aten.nll_loss_forward.default)
def nll_loss_forward(
    self: Any, target: Any, weight: Any, reduction: int, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return minus the weighted scores of the targets, and the sum of the weights."""
    check_call(aten.nll_loss_forward.default, self, target, weight, reduction, ignore_index)
    x, positions = (self, target) if self.dim() == 2 else (self.unsqueeze(0), target.reshape(1))
    weights = _weights(positions, _class_weights(weight, x, target), ignore_index, x)
    loss = -_target_scores(x, positions) * weights
    if self.dim() == 1 and not reduction:
        loss = loss.reshape(())
    return _reduce(loss, _REDUCTIONS[reduction], weights.sum()), weights.sum()


@implements(F.cross_entropy)
def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Compute the cross entropy of rows of scores and classes, or probabilities of classes."""
    is_matrix = isinstance(input, SparseTensor) and input.dim() == 2 and input.is_floating_point()
    if not is_matrix or size_average is not None or reduce is not None or reduction not in _REDUCTIONS:
        options = (size_average, ignore_index, reduce, reduction, label_smoothing)
        return run_torch(F.cross_entropy, input, target, weight, *options)
    check_call(F.cross_entropy, input, target, weight, reduction=reduction, label_smoothing=label_smoothing)
    class_weights = _class_weights(weight, input, target)
    total = torch.logsumexp(input, 1)
    if target.is_floating_point():
        loss, weights = _soft_target_loss(input, target, class_weights, total), torch.ones_like(total)
    else:
        weights = _weights(target, class_weights, ignore_index, input)
        loss = weights * (total - _target_scores(input, target))
    if label_smoothing:
        smoothing_loss = total * class_weights.sum() - mv(input, class_weights)
        if not target.is_floating_point():
            smoothing_loss = torch.where(target == ignore_index, 0, smoothing_loss)
        loss = (1 - label_smoothing) * loss + label_smoothing / input.shape[1] * smoothing_loss
    return _reduce(loss, reduction, weights.sum())


@implements_differentiable(F.cross_entropy)
def differentiable_cross_entropy(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """Compose the same of differentiable functions, if only the scores require gradients."""
    is_served = isinstance(input, SparseTensor) and input.dim() == 2 and input.numel()
    if not is_served or (isinstance(target, torch.Tensor) and target.requires_grad):
        return by_formula(F.cross_entropy, (input, target, *args), kwargs)
    return cross_entropy(input, target, *args, **kwargs)


def _soft_target_loss(
    x: SparseTensor, target: Any, weight: torch.Tensor, total: torch.Tensor
) -> torch.Tensor:
    """Compute the loss of each row where targets are probabilities."""
    if tuple(target.shape) != tuple(x.shape):
        shapes = f"input has shape {tuple(x.shape)}, but target has shape {tuple(target.shape)}"
        raise ShapeError(f"cross_entropy: {shapes}")
    weighted = target * weight
    loss: torch.Tensor = total * as_dense(weighted.sum(1)) - as_dense((weighted * x).sum(1))
    return loss


def _class_weights(weight: Any, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.ones(x.shape[1], dtype=x.dtype, device=target.device) if weight is None else weight


def _weights(target: Any, class_weights: Any, ignore_index: int, x: torch.Tensor) -> torch.Tensor:
    """Return the weight of each row: that of its class, and 0 where the target is ``ignore_index``."""
    rows, classes = x.shape
    if tuple(target.shape) != (rows,):
        raise ShapeError(
            f"cross_entropy: there are {rows} rows of scores, but target has shape {tuple(target.shape)}"
        )
    counts = target != ignore_index
    wrong = counts & ((target < 0) | (target >= classes))
    if bool(wrong.any()):
        raise IndexRangeError(f"target {int(target[wrong][0])} is out of bounds for {classes} classes")
    weights: torch.Tensor = class_weights[torch.where(counts, target, 0)] * counts
    return weights


def _target_scores(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the score of each row's target; of any class where it is ignored."""
    inside = torch.where((target >= 0) & (target < x.shape[1]), target, 0)
    rows = torch.arange(len(inside), device=inside.device)
    if isinstance(x, SparseTensor):
        return differentiable_entries(x).at(rows * x.shape[1] + inside)
    return x[rows, inside]


def _reduce(loss: torch.Tensor, reduction: str, weight: torch.Tensor) -> torch.Tensor:
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / weight
