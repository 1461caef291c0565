"""Elementwise losses of two sparse tensors, with their sum or mean, and distances between their rows.

Where neither operand stores anything the loss of one element is always the same, f(0, 0). So the sum is that
of the loss at the stored entries, and f(0, 0) for each implicit zero: the cost follows the entries, also
where f(0, 0) is not zero.

Cross entropy and negative log likelihood take scores (N, C), one row for each sample. The logarithm of a
softmax is dense, but the loss needs one number of it a row:

    loss[i] = logsumexp(x[i,:]) - x[i, target[i]]

so that the cost follows the entries of x and the number of rows.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.backends.by_torch.rows import sum_rows
from scorch._src.ops.fallback import as_dense, run_torch
from scorch._src.ops.products.matmul import mv
from scorch._src.statements.autocast import in_float32
from scorch._src.tensor.autograd import by_formula, sparse_of, values_of
from scorch._src.tensor.check_call import check_call
from scorch._src.tensor.entries import entries_of, united
from scorch._src.tensor.entries_autograd import differentiable_entries
from scorch._src.tensor.registry import implements, implements_differentiable
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import legacy_reduction
from scorch.errors import IndexRangeError, ShapeError

aten = torch.ops.aten
_SCALARS = ("weight", "pos_weight", "var")  # arguments that may be dense, if they are scalars


def _run_loss(function: Any, signature: inspect.Signature, *args: Any, **kwargs: Any) -> Any:
    """Run ``function``, an elementwise loss, on lists of stored values."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    if not _is_reduced_over_entries(bound.arguments):
        return run_torch(function, *args, **kwargs)
    check_call(function, *args, **kwargs)
    return _reduce_over_entries(function, bound.arguments)


def _is_reduced_over_entries(arguments: dict[str, Any]) -> bool:
    """Whether the result is a scalar, computed of sparse tensors of one shape."""
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    sparse = [tensor for tensor in tensors.values() if isinstance(tensor, SparseTensor)]
    dense = [name for name, tensor in tensors.items() if not isinstance(tensor, SparseTensor)]
    is_legacy = arguments.get("size_average") is not None or arguments.get("reduce") is not None
    return (
        arguments["reduction"] in ("mean", "sum", "batchmean")
        and not is_legacy
        and not any(tensor.requires_grad for tensor in tensors.values())
        and len({tuple(tensor.shape) for tensor in sparse}) == 1
        and all(name in _SCALARS and tensors[name].numel() == 1 for name in dense)
    )


def _reduce_over_entries(function: Callable[..., Any], arguments: dict[str, Any]) -> torch.Tensor:
    sparse = {name: entries_of(value) for name, value in arguments.items() if isinstance(value, SparseTensor)}
    keys = united(list(sparse.values()))

    def compute(values: dict[str, torch.Tensor], count: int) -> Any:
        scalars = {
            name: value.reshape(1).expand(count)
            for name, value in arguments.items()
            if isinstance(value, torch.Tensor) and name not in sparse
        }
        return function(**{**arguments, **scalars, **values, "reduction": "none"})

    stored = compute({name: entries.at(keys) for name, entries in sparse.items()}, keys.numel())
    shape = next(iter(sparse.values())).shape
    implicit_zeros = math.prod(shape) - keys.numel()
    accumulate_dtype = torch.complex128 if stored.is_complex() else torch.float64
    total = stored.sum(dtype=accumulate_dtype)
    if implicit_zeros:
        zero = compute({name: entries.values.new_zeros(1) for name, entries in sparse.items()}, 1)
        total = total + implicit_zeros * zero.reshape(()).to(accumulate_dtype)
    divisor = {"sum": 1, "mean": math.prod(shape), "batchmean": shape[0] if shape else 1}
    return torch.div(total, divisor[arguments["reduction"]]).to(stored.dtype)


for _function in (
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
    F.kl_div,
    F.poisson_nll_loss,
    F.gaussian_nll_loss,
    F.soft_margin_loss,
    F.hinge_embedding_loss,
    F.margin_ranking_loss,
):
    implements(_function)(functools.partial(_run_loss, _function, inspect.signature(_function)))


def _difference_loss(function: Callable[..., Any], **defaults: Any) -> None:
    """Register a loss that is a function of the difference, zero where both are."""

    def handler(input: Any, target: Any, *args: Any, reduction: str = "mean", **kwargs: Any) -> Any:
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        is_sparse = isinstance(input, SparseTensor) and isinstance(target, SparseTensor)
        is_plain = not args and set(kwargs) <= set(defaults) and reduction in ("none", "sum", "mean")
        if not is_sparse or not is_plain or input.shape != target.shape or input.dtype != target.dtype:
            return by_formula(function, (input, target, *args), {"reduction": reduction, **kwargs})
        distance = input - target
        values = values_of(distance)
        losses = function(values, torch.zeros_like(values), reduction="none", **{**defaults, **kwargs})
        loss: Any = sparse_of(distance.storage.pattern, losses)
        return loss if reduction == "none" else loss.sum() if reduction == "sum" else loss.mean()

    implements_differentiable(function)(handler)


_difference_loss(F.mse_loss)
_difference_loss(F.l1_loss)
_difference_loss(F.smooth_l1_loss, beta=1.0)
_difference_loss(F.huber_loss, delta=1.0)


@implements(torch.dist, torch.Tensor.dist)
def dist(input: Any, other: Any, p: float = 2) -> Any:
    """Compute the p-norm of the difference."""
    return torch.linalg.vector_norm(torch.sub(input, other), p)


@implements(F.pairwise_distance)
def pairwise_distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Any:
    """Compute ``norm(x1 - x2 + eps)`` along the last dimension; ``eps`` alone counts at implicit zeros."""
    difference = torch.sub(x1, x2)
    if not isinstance(difference, SparseTensor) or p <= 0 or not difference.dim():
        return run_torch(F.pairwise_distance, x1, x2, p, eps, keepdim)
    entries = entries_of(difference)
    *outer, size = entries.shape
    rows = math.prod(outer)
    row = entries.keys.div(max(size, 1), rounding_mode="floor")
    implicit_zeros = size - torch.bincount(row, minlength=rows)
    shifted = (entries.values + eps).abs()
    if math.isinf(p):
        distances = torch.where(implicit_zeros > 0, abs(eps), 0.0).to(shifted.dtype)
        distances = distances.scatter_reduce(0, row, shifted, "amax")
    else:
        powers = (implicit_zeros * abs(eps) ** p).to(shifted.dtype) + sum_rows(row, shifted**p, rows)
        distances = powers ** (1 / p)
    return distances.reshape(*outer, 1) if keepdim else distances.reshape(outer)


@implements(F.triplet_margin_loss)
@in_float32()
def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    """Compute ``relu(distance to positive - distance to negative + margin)``."""
    if size_average is not None or reduce is not None:
        reduction = legacy_reduction(size_average, reduce)
    return F.triplet_margin_with_distance_loss(
        anchor,
        positive,
        negative,
        distance_function=lambda a, b: pairwise_distance(a, b, p, eps),
        margin=margin,
        swap=swap,
        reduction=reduction,
    )


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
@in_float32()
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
        if tuple(target.shape) != tuple(input.shape):
            shapes = (
                f"expected input and target to have the same shape, but got {tuple(input.shape)} and "
                f"{tuple(target.shape)}"
            )
            raise ShapeError(f"cross_entropy: {shapes}")
        weighted = target * class_weights
        loss = total * as_dense(weighted.sum(1)) - as_dense((weighted * input).sum(1))
        weights = torch.ones_like(total)
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


def _class_weights(weight: Any, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.ones(x.shape[1], dtype=x.dtype, device=target.device) if weight is None else weight


def _weights(target: Any, class_weights: Any, ignore_index: int, x: torch.Tensor) -> torch.Tensor:
    """Return the weight of each row: that of its class, and 0 where the target is ``ignore_index``."""
    rows, classes = x.shape
    if tuple(target.shape) != (rows,):
        raise ShapeError(f"cross_entropy: input has {rows} rows, but target has shape {tuple(target.shape)}")
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
