"""One call with sparse tensors beside the same call with dense ones."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import scorch
from scorch.errors import ScorchError
from tools.what_works.cases import Case
from tools.what_works.operators import PRODUCTS, TRANSFORMS

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
SMALL = 8  # results with fewer elements may be dense
# of equal elements they may name any
TIED = {"argsort", "kthvalue", "median", "mode", "nanmedian", "sort", "topk"}

OUTCOMES = ("passed", "refused", "cryptic", "wrong", "crashed", "too slow")


@dataclass(frozen=True)
class Outcome:
    """What became of a call, with the error; ``is_sparse`` where the result should be, and whether it is."""

    kind: str
    message: str = ""
    is_sparse: bool | None = None


@dataclass(frozen=True)
class Reference:
    """What the dense call gives, and which results should be sparse."""

    results: list[Any]
    sparse: list[int]


def reference(case: Case) -> Reference | None:
    """The dense results; None where torch refuses the call, or gives something else each time."""
    on_host = case.on("cpu")  # a device answers some calls, such as draws from zeros, by stopping the process
    try:
        on_host.call(on_host.copied())
        zeros = _results(on_host.call(on_host.copied(torch.zeros_like)))
        found = _results(case.call(case.copied()))
        again = _results(case.call(case.copied(), seed=8))
        if _difference(again, found) is not None:
            return None
        return Reference(found, [] if _is_filled(case) else _thin(case, found, zeros))
    except Exception:  # whatever torch says
        return None


def _is_filled(case: Case) -> bool:
    """Whether it is a product with a dense tensor, which is dense; Fourier transforms are such products."""
    return case.family == TRANSFORMS or (
        case.family == PRODUCTS
        and any(
            isinstance(value, torch.Tensor) and value.is_floating_point() and place not in case.sparse
            for place, value in enumerate(case.leaves)
        )
    )


def _thin(case: Case, found: list[Any], zeros: list[Any]) -> list[int]:
    """Which results should be sparse."""
    size = max(SMALL, case.leaves[case.sparse[0]].numel() // 2)
    return [n for n, value in enumerate(found) if _is_thin(value, zeros[n], size)]


def _is_thin(value: Any, at_zero: Any, size: int) -> bool:
    """Whether a result is zero for zeros only, as large as the input, and at least half of it zeros."""
    if (
        not isinstance(value, torch.Tensor)
        or value.numel() < size
        or value.dtype in (torch.int64, torch.uint64)
    ):
        return False
    return not bool(at_zero.any()) and 0 < 2 * int(torch.count_nonzero(value)) <= value.numel()


def check(case: Case, format: str) -> Outcome | None:
    """The call with tensors in ``format``; None where the dense call gives nothing to compare with."""
    wanted = reference(case)
    if wanted is None:
        return None
    try:
        results = _results(case.call(case.copied(functools.partial(in_format, format=format))))
        dense = [value.to_dense() if is_sparse(value) else value for value in results]
    except ScorchError as error:
        return Outcome("refused", _told(error))
    except Exception as error:
        return Outcome("cryptic", _told(error))
    difference = _difference(dense, wanted.results, case)
    if difference is not None:
        return Outcome("wrong", difference)
    kept = all(is_sparse(results[n]) for n in wanted.sparse) if wanted.sparse else None
    return Outcome("passed", is_sparse=kept)


def in_format(tensor: torch.Tensor, format: str) -> torch.Tensor:
    """``tensor`` stored in ``format``, or for vectors in what is closest to it."""
    form: str | scorch.Format = format
    if tensor.dim() == 1 and format not in ("coo", "csr"):
        blocks = re.search(r"\((\d+)", format)
        form = scorch.Format("sd", order=(0, 0), blocks={0: int(blocks[1])}) if blocks else "s"
    return scorch.from_torch(tensor, format=form)


def is_sparse(value: Any) -> bool:
    return isinstance(value, scorch.SparseTensor)


def _results(value: Any) -> list[Any]:
    """All results; torch's own sparse tensors as dense ones."""
    leaves = [leaf for leaf in tree_leaves(value) if leaf is not None]
    is_plain = [is_sparse(leaf) or getattr(leaf, "layout", torch.strided) == torch.strided for leaf in leaves]
    return [leaf if plain else leaf.to_dense() for leaf, plain in zip(leaves, is_plain, strict=True)]


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:240]}"


def _difference(found: list[Any], wanted: list[Any], case: Case | None = None) -> str | None:
    """What is not the same in two lists of results, of a call that is perhaps one of ``TIED``."""
    if len(found) != len(wanted):
        return f"{len(found)} results instead of {len(wanted)}"
    for one, other in zip(found, wanted, strict=True):
        try:
            rtol, atol = _tolerance(other)
            torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
        except AssertionError as error:
            if case is None or not _are_tied(case, one, other):
                return " ".join(str(error).split())[:240]
    return None


def _are_tied(case: Case, found: Any, wanted: Any) -> bool:
    """Whether places differ only among equal elements of the input, and none is named twice."""
    are_places = isinstance(wanted, torch.Tensor) and found.dtype == wanted.dtype == torch.int64
    name = getattr(case.function, "__name__", "")
    if name not in TIED or not are_places or found.shape != wanted.shape:
        return False
    given = case.leaves[case.sparse[0]]
    for dim, size in enumerate(given.shape):
        one, other = (p if p.dim() == given.dim() else p.unsqueeze(dim) for p in (found, wanted))
        lines = [n for d, n in enumerate(given.shape) if d != dim]
        is_along = [n for d, n in enumerate(one.shape) if d != dim] == lines
        if not is_along or bool(((one < 0) | (one >= size)).any()) or bool((other >= size).any()):
            continue
        is_once = not bool((one.sort(dim).values.diff(dim=dim) == 0).any())
        if is_once and torch.equal(given.gather(dim, one), given.gather(dim, other)):
            return True
    return False


def _tolerance(wanted: Any) -> tuple[float, float] | tuple[None, None]:
    """Errors of short numbers are as large as those of the largest, which was perhaps added."""
    if not isinstance(wanted, torch.Tensor) or wanted.dtype not in TOLERANCE:
        return None, None
    relative = TOLERANCE[wanted.dtype]
    finite = wanted[wanted.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 1.0
    is_short = wanted.dtype in (torch.bfloat16, torch.float16)
    return relative, relative * (max(1.0, largest) if is_short else 1.0)
