"""NaN, infinities, signed zeros, denormal and very large numbers: what dense tensors give, sparse ones do.

Lines (rows) are empty, full or in between, and some tensors have no elements. Where torch's own result
depends on the order in which it adds or multiplies (an overflow on the way), nothing is drawn.
"""

from __future__ import annotations

import functools
import math
import random
import warnings
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import scorch
from on_device import on_host
from ops.special_calls import CALLS, INF, NAN
from scorch import SparseTensor

SHAPES = [(4, 6), (3, 1), (1, 5), (6, 4), (5,), (2, 3, 4), (0, 4), (3, 0), (1, 1), (3, 3)]
FORMATS = {1: ["s", "o"], 2: ["csr", "csc", "coo", "dcsr", "sd", "bsr(2,2)"], 3: ["sss", "ooo", "dds", "dsd"]}
POOLS = [
    [NAN],
    [INF],
    [-INF],
    [INF, -INF],
    [NAN, INF, -INF],
    [-0.0, 0.0],
    [-0.0, NAN],
    ["denormal"],
    [1000.0, -1000.0, -90.0],
    [-1000.0, -995.0, -1001.0],
    [],
]
ORDERED = {"prod", "cumprod", "renorm", "layer_norm", "rms_norm", "group_norm", "cov"}  # they may overflow
REAL = [torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
# Functions of complex numbers that are defined for them, and multiply none of their infinities on the way.
OF_COMPLEX = [
    "sum",
    "mean",
    "var",
    "std",
    "var_mean",
    "std_mean",
    "any",
    "all",
    "count_nonzero",
    "vector_norm",
    "norm",
    "cumsum",
    "normalize",
    "nonzero",
    "trace",
]


def tensor(rng: random.Random, dtype: torch.dtype, has_large: bool) -> SparseTensor:
    shape = rng.choice(SHAPES)
    size = math.prod(shape)
    line = size // shape[0] if shape[0] else 0
    kinds = [rng.choice(["empty", "full", "some", "some"]) for _ in range(shape[0])]
    places = [
        p
        for p in range(size)
        if kinds[p // line] == "full" or (kinds[p // line] == "some" and rng.random() < 0.5)
    ]
    pool = rng.choice(POOLS)

    def number() -> float:
        if pool and rng.random() < 0.3:
            drawn = rng.choice(pool)
            return torch.finfo(dtype).smallest_normal / 16 if drawn == "denormal" else drawn
        return rng.choice([rng.gauss(0, 1), float(rng.randint(-2, 2))])

    values = [number() for _ in places]
    if has_large and values and rng.random() < 0.2:
        values[rng.randrange(len(values))] = rng.choice([1, -1]) * torch.finfo(dtype).max
    if dtype.is_complex:
        values = [complex(value, number() if rng.random() < 0.5 else 0.0) for value in values]
    flat = torch.tensor(places, dtype=torch.int64)
    indices = (
        torch.stack(torch.unravel_index(flat, shape))
        if size
        else torch.zeros(len(shape), 0, dtype=torch.int64)
    )
    made = scorch.sparse_coo_tensor(indices, torch.tensor(values, dtype=dtype), shape)
    return made.to_format(rng.choice(FORMATS[len(shape)]))


def outcome(call: Any, x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch says of degrees of freedom and the like
        try:
            return call(x)
        except Exception as error:
            return error


def compare(name: str, seed: int, dtypes: list[torch.dtype], learns: bool) -> None:
    rng = random.Random(f"{name} {seed}")
    S = tensor(rng, rng.choice(dtypes), name not in ORDERED)
    call = CALLS[name](rng, S.dim())
    D = S.to_dense()
    of_dense = functools.partial(outcome, call)
    given = D.clone().requires_grad_() if learns else D
    wanted = on_host(of_dense, given) if D.is_complex() else of_dense(given)
    found = outcome(call, S.clone().requires_grad_() if learns else S)
    about = f"{name}, seed {seed}, {S}:\n{D}\nwanted {wanted}\nfound {found}"
    if isinstance(wanted, Exception):
        assert isinstance(found, type(wanted)), about
        return
    assert not isinstance(found, Exception), about
    tolerance = 1e-4 if S.dtype in (torch.float32, torch.complex64) else 1e-7
    for one, other in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other, about
            continue
        one = one.to_dense() if isinstance(one, SparseTensor) else one
        torch.testing.assert_close(
            one.detach(), other.detach(), rtol=tolerance, atol=1e-6, equal_nan=True, msg=about
        )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CALLS)
def test_real_numbers(name: str, cases: int) -> None:
    for seed in range(max(1, cases // 50)):
        compare(name, seed, REAL, learns=False)


@pytest.mark.parametrize("name", CALLS)
def test_numbers_that_are_learned(name: str, cases: int) -> None:
    for seed in range(max(1, cases // 100)):
        compare(name, 10**6 + seed, REAL, learns=True)


@pytest.mark.parametrize("name", OF_COMPLEX)
def test_complex_numbers(name: str, cases: int) -> None:
    for seed in range(max(1, cases // 30)):
        compare(name, 2 * 10**6 + seed, COMPLEX, learns=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_running_sums_of_one_line_leave_the_others_alone(dtype: torch.dtype) -> None:
    """Each line is summed by itself: large numbers in one do not swallow small ones in the next."""
    D = torch.tensor([[1e20, 0.0, 3.0], [0.0, 1.0, 2.0], [-1e20, 0.0, 1.0]], dtype=dtype)
    for dim in (0, 1):
        for call in (torch.cumsum, torch.cumprod):
            found = call(scorch.from_torch(D, format="csr"), dim)
            torch.testing.assert_close(found.to_dense(), call(D, dim))
        masked = scorch.from_torch(D, format="csr").cumsum(dim, masked=True)
        torch.testing.assert_close(masked.to_dense(), torch.cumsum(D, dim) * (D != 0))


def test_products_of_tiny_and_huge_numbers_do_not_vanish() -> None:
    D = torch.tensor([[1e200, 1e-200, 1e-200, 1e200, 1e-300, 1e300]], dtype=torch.float64)
    found = torch.cumprod(scorch.from_torch(D, format="csr"), 1)
    torch.testing.assert_close(found.to_dense(), torch.cumprod(D, 1), rtol=1e-12, atol=0)


def test_gradients_of_infinite_extremes() -> None:
    """They are shared among the elements that have the extreme value, as in torch."""
    D = torch.tensor([[INF, 0.0, INF], [-INF, -1.0, -2.0], [1.0, 0.0, 1.0]], dtype=torch.float64)
    for function in (torch.amax, torch.amin):
        S, dense = scorch.from_torch(D, format="csr").requires_grad_(), D.clone().requires_grad_()
        for x in (S, dense):
            (function(x, 1) * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)).sum().backward()
        torch.testing.assert_close(S.grad.to_dense(), dense.grad * (D != 0))
