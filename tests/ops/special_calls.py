"""Calls of torch whose result depends on NaN, infinities and signed zeros, with arguments that are drawn.

``CALLS[name](rng, rank)`` gives a function of one tensor with ``rank`` dimensions. Products (``einsum``,
``matmul``, ``kron``) are not here: a zero that is not stored annihilates in them, as documented.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

INF, NAN = math.inf, math.nan
Call = Callable[[Any], Any]
Draw = Callable[[random.Random, int], Call]


def fixed(function: Call) -> Draw:
    return lambda rng, rank: function


def reduction(
    function: Callable[..., Any], several: bool = True, all_dims: bool = True, keeps: bool = True, **more: Any
) -> Draw:
    """Over one dimension, several or all; each of ``more`` is a list of values for an argument."""

    def draw(rng: random.Random, rank: int) -> Call:
        dims: list[Any] = list(range(-rank, rank))
        dims += [None] if all_dims else []
        dims += [(0, rank - 1)] if several and rank > 1 else []
        given = {name: rng.choice(values) for name, values in more.items()}
        given = {name: value for name, value in given.items() if value is not None}
        dim = rng.choice(dims)
        if dim is not None:
            given["dim"] = dim
            if keeps:
                given["keepdim"] = rng.random() < 0.3
        return lambda x: function(x, **given)

    return draw


def along(function: Callable[..., Any], **more: Any) -> Draw:
    """Along one dimension."""

    def draw(rng: random.Random, rank: int) -> Call:
        given = {name: rng.choice(values) for name, values in more.items()}
        dim = rng.randrange(rank)
        return lambda x: function(x, dim=dim, **given)

    return draw


def with_double(name: str) -> Callable[..., Any]:
    """A loss of a tensor and of twice that tensor."""
    function = getattr(F, name)
    return lambda x, **given: function(x, 2 * x, **given)


def chosen(function: Callable[..., Any], **more: Any) -> Draw:
    """With arguments from lists."""

    def draw(rng: random.Random, rank: int) -> Call:
        given = {name: rng.choice(values) for name, values in more.items()}
        return lambda x: function(x, **given)

    return draw


CORRECTIONS = [None, 0, 2, 100, 1.5]
ORDERS = [2, 1, 0, -1, -2, 3, 0.5, INF, -INF]
SUMS = ["mean", "sum", "none"]

REDUCTIONS: dict[str, Draw] = {
    **{
        name: reduction(getattr(torch, name))
        for name in ("sum", "nansum", "nanmean", "mean", "amax", "amin", "any", "all")
    },
    **{
        name: reduction(getattr(torch, name), correction=CORRECTIONS)
        for name in ("var", "std", "var_mean", "std_mean")
    },
    **{
        name: reduction(getattr(torch, name), several=False)
        for name in ("prod", "max", "min", "argmax", "argmin", "median", "nanmedian")
    },
    "aminmax": chosen(torch.aminmax, dim=[None, 0, -1], keepdim=[False]),
    "count_nonzero": reduction(torch.count_nonzero, keeps=False),
    "logsumexp": reduction(torch.logsumexp, all_dims=False),
    "mode": reduction(torch.mode, several=False, all_dims=False),
    "kthvalue": along(lambda x, **given: torch.kthvalue(x, 1, **given).values, keepdim=[False, True]),
    "quantile": reduction(lambda x, **given: torch.quantile(x, 0.3, **given), several=False),
    "nanquantile": reduction(lambda x, **given: torch.nanquantile(x, 0.3, **given), several=False),
    "vector_norm": reduction(torch.linalg.vector_norm, ord=ORDERS),
    "norm": reduction(torch.norm, p=[2, 1, 0, -1, 3, INF, -INF, "fro"]),
    "linalg.norm": reduction(torch.linalg.norm, several=False, ord=[None, 2, 1, -1, INF, -INF]),
    "matrix_norm": chosen(torch.linalg.matrix_norm, ord=["fro", 1, -1, INF, -INF]),
    "trace": fixed(torch.trace),
    "cov": fixed(torch.cov),
    "histc": fixed(lambda x: torch.histc(x, 4, -2, 2)),
    "equal": fixed(lambda x: torch.equal(x, x.clone())),
}

LINES: dict[str, Draw] = {
    **{
        name: along(getattr(torch, name))
        for name in (
            "softmax",
            "log_softmax",
            "cumsum",
            "cumprod",
            "cummax",
            "cummin",
            "logcumsumexp",
            "diff",
        )
    },
    "sort": along(lambda x, **given: torch.sort(x, stable=True, **given), descending=[False, True]),
    "argsort": along(lambda x, **given: torch.argsort(x, stable=True, **given)),
    "topk": along(lambda x, **given: torch.topk(x, 1, **given).values, largest=[False, True]),
    "msort": fixed(torch.msort),
    "normalize": along(F.normalize, p=[1.0, 2.0, 3.0, INF, -INF, 0.0], eps=[1e-12, 0.5]),
    "renorm": along(torch.renorm, p=[1, 2, INF], maxnorm=[1.0]),
    "softmin": along(F.softmin),
    "layer_norm": fixed(lambda x: F.layer_norm(x, (x.shape[-1],))),
    "rms_norm": fixed(lambda x: F.rms_norm(x, (x.shape[-1],))),
    "group_norm": fixed(lambda x: F.group_norm(x, 1)),
    "cosine_similarity": fixed(lambda x: F.cosine_similarity(x, 2 * x, dim=-1)),
    "pairwise_distance": fixed(lambda x: F.pairwise_distance(x, 2 * x)),
    "dist": fixed(lambda x: torch.dist(x, 2 * x, 2)),
    "trapezoid": fixed(torch.trapezoid),
    "isin": fixed(lambda x: torch.isin(x, torch.tensor([0.0, 1.0, NAN, INF], dtype=x.dtype))),
    "nonzero": fixed(torch.nonzero),
    "unique": fixed(torch.unique),
}

LOSSES: dict[str, Draw] = {
    **{
        name: chosen(with_double(name), reduction=SUMS)
        for name in (
            "mse_loss",
            "l1_loss",
            "smooth_l1_loss",
            "huber_loss",
            "soft_margin_loss",
            "poisson_nll_loss",
            "binary_cross_entropy_with_logits",
            "hinge_embedding_loss",
        )
    },
    "cross_entropy": chosen(
        lambda x, **given: F.cross_entropy(
            x, torch.zeros(x.shape[0], *x.shape[2:], dtype=torch.int64), **given
        ),
        reduction=SUMS,
        label_smoothing=[0.0, 0.1],
    ),
}

FUNCTIONS = [
    "abs",
    "neg",
    "sign",
    "sgn",
    "relu",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "square",
    "sigmoid",
    "logit",
    "erf",
    "erfc",
    "erfinv",
    "lgamma",
    "digamma",
    "floor",
    "ceil",
    "round",
    "trunc",
    "frac",
    "isnan",
    "isinf",
    "isfinite",
    "isposinf",
    "isneginf",
    "signbit",
    "nan_to_num",
    "logical_not",
    "deg2rad",
    "sinc",
    "angle",
    "positive",
    "i0",
]
ACTIVATIONS = [
    "relu6",
    "elu",
    "selu",
    "celu",
    "gelu",
    "silu",
    "mish",
    "softplus",
    "softsign",
    "tanhshrink",
    "hardshrink",
    "softshrink",
    "leaky_relu",
    "hardtanh",
    "hardsigmoid",
    "hardswish",
    "logsigmoid",
]

ELEMENTWISE: dict[str, Draw] = {
    **{name: fixed(getattr(torch, name)) for name in FUNCTIONS},
    **{name: fixed(getattr(F, name)) for name in ACTIVATIONS},
    "threshold": fixed(lambda x: F.threshold(x, 0.1, 5.0)),
    "glu": fixed(lambda x: F.glu(x, -1)),
    "prelu": fixed(lambda x: F.prelu(x, torch.tensor([0.25], dtype=x.dtype))),
    "clamp": chosen(torch.clamp, min=[None, -1.0, 1.0, NAN, -INF], max=[2.0, 1.0, 0.0, NAN, INF]),
    "replaced": fixed(lambda x: torch.nan_to_num(x, 1.0, 2.0, 3.0)),
    "where": fixed(lambda x: torch.where(x > 0, x, -x)),
    "masked_fill": fixed(lambda x: x.masked_fill(x.isnan(), INF)),
    "lerp": fixed(lambda x: torch.lerp(x, 2 * x, 0.5)),
    "addcdiv": fixed(lambda x: torch.addcdiv(x, x, 2 * x, value=0.5)),
    "isclose": fixed(lambda x: torch.isclose(x, x.clone())),
}

OPERATORS = [
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "pow",
    "fmod",
    "remainder",
    "floor_divide",
    "atan2",
    "copysign",
    "hypot",
    "xlogy",
    "eq",
    "ne",
    "lt",
    "ge",
    "logaddexp",
    "heaviside",
    "logical_and",
    "logical_xor",
]


def operator(name: str) -> Draw:
    """With a number, with itself, flipped, or with a dense tensor of odd numbers, in either order."""
    function = getattr(torch, name)

    def draw(rng: random.Random, rank: int) -> Call:
        numbers = [rng.choice([NAN, INF, -INF, 0.0, -0.0, 1.0, 2.0, -1.5, 1e-30]) for _ in range(64)]
        how, is_first, is_whole = rng.choice(["number", "itself", "flipped", "dense"]), *_two(rng)

        def call(x: Any) -> Any:
            if how == "itself":
                return function(x, x)
            if how == "flipped":
                return function(x.flip(0), 2 * x)
            shape = () if how == "number" else tuple(x.shape) if is_whole else tuple(x.shape[-1:])
            other = torch.tensor(numbers[: math.prod(shape)], dtype=x.dtype).reshape(shape)
            return function(x, other) if is_first else function(other, x)

        return call

    return draw


def _two(rng: random.Random) -> tuple[bool, bool]:
    return rng.random() < 0.5, rng.random() < 0.5


CALLS: dict[str, Draw] = {
    **REDUCTIONS,
    **LINES,
    **LOSSES,
    **{f"elementwise {name}": draw for name, draw in ELEMENTWISE.items()},
    **{f"operator {name}": operator(name) for name in OPERATORS},
}
