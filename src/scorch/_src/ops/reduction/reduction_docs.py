"""Signatures and docstrings of the reductions with ``masked=`` and of ``scorch.masked``, from one table.

>>> import scorch
>>> scorch.amax.__doc__.splitlines()[0]
'Return the largest element, like ``torch.amax``; optionally of the stored elements only.'
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from scorch._src.dataclass import dataclass

REQUIRED = inspect.Parameter.empty
ARGUMENTS = {
    "input": "a tensor.",
    "dim": "the dimension.",
    "p": "the order of the norm.",
    "ord": "the order of the norm.",
    "unbiased": "whether to divide by one less than the number of elements; ``correction`` replaces it.",
    "correction": "what is subtracted from the number of elements in the divisor.",
    "keepdim": "whether reduced dimensions are kept with size 1.",
    "dtype": "the dtype to compute with and to return; that of PyTorch without it.",
    "mask": "a bool tensor; True elements count. With a sparse ``mask``, the cost depends on its nonzeros.",
    "masked": "whether only the stored elements of a sparse tensor count, and implicit zeros do not.",
}
OPTIONAL = "the dimension or dimensions to reduce; all of them without it."


@dataclass(frozen=True)
class Reduction:
    """What a function returns, its parameters in PyTorch, and what an example prints."""

    returns: str
    parameters: dict[str, Any]
    keywords: dict[str, Any]
    example: str


def _row(returns: str, example: str, *, then: dict[str, Any] | None = None, **parameters: Any) -> Reduction:
    return Reduction(returns, parameters, then or {}, example)


_BOTH: dict[str, Any] = {"dim": None, "keepdim": False}
_DTYPE: dict[str, Any] = {"dtype": None}
_SPREAD: dict[str, Any] = {"correction": 1, "keepdim": False}
TABLE = {
    "sum": _row("the sum of the elements", "tensor([2., 2.])", **_BOTH, then=_DTYPE),
    "mean": _row("the mean of the elements", "tensor([1., 2.])", **_BOTH, then=_DTYPE),
    "prod": _row("the product of the elements", "tensor([-3.,  2.])", **_BOTH, then=_DTYPE),
    "amax": _row("the largest element", "tensor([3., 2.])", dim=(), keepdim=False),
    "amin": _row("the smallest element", "tensor([-1.,  2.])", dim=(), keepdim=False),
    "argmax": _row("the index of the largest element", "tensor([2, 1])", **_BOTH),
    "argmin": _row("the index of the smallest element", "tensor([0, 1])", **_BOTH),
    "max": _row("the largest element, and along ``dim`` its index", "tensor([3., 2.])", **_BOTH),
    "min": _row("the smallest element, and along ``dim`` its index", "tensor([-1.,  2.])", **_BOTH),
    "median": _row("the lower median of the elements", "tensor([-1.,  2.])", **_BOTH),
    "var": _row("the variance of the elements", "tensor([8., nan])", dim=None, then=_SPREAD),
    "std": _row("the standard deviation of the elements", "tensor([2.8284,    nan])", dim=None, then=_SPREAD),
    "norm": _row("the norm", "tensor([3.1623, 2.0000])", p="fro", **_BOTH, then=_DTYPE),
    "logsumexp": _row(
        "the logarithm of the sum of exponentials", "tensor([3.0181, 2.0000])", dim=REQUIRED, keepdim=False
    ),
    "softmax": _row(
        "the softmax along ``dim``", "tensor([0.0180, 0.9820, 1.0000])", dim=REQUIRED, then=_DTYPE
    ),
    "log_softmax": _row(
        "the logarithm of the softmax along ``dim``",
        "tensor([-4.0181, -0.0181,  0.0000])",
        dim=REQUIRED,
        then=_DTYPE,
    ),
    "cumsum": _row("the cumulative sum along ``dim``", "tensor([-1.,  2.,  2.])", dim=REQUIRED, then=_DTYPE),
    "cumprod": _row(
        "the cumulative product along ``dim``", "tensor([-1., -3.,  2.])", dim=REQUIRED, then=_DTYPE
    ),
}
PER_ELEMENT = ("softmax", "log_softmax", "cumsum", "cumprod")  # which return a sparse tensor
TEXT = """Return {returns}{rest}

Args:
{arguments}

Returns:
    {kind}

Raises:
{raises}

Example:

    >>> import torch, scorch
    >>> S = scorch.from_torch(torch.tensor([[-1.0, 0.0, 3.0], [0.0, 2.0, 0.0]]), format="csr")
    >>> {call}
    {printed}
"""


def document_maskable(call: Callable[..., Any], name: str) -> None:
    """Give PyTorch's function ``name`` with the argument ``masked`` a signature and a docstring."""
    row, kind = TABLE[name], inspect.Parameter
    named = {**row.keywords, "masked": False}
    parameters = [
        kind("input", kind.POSITIONAL_OR_KEYWORD),
        *(kind(key, kind.POSITIONAL_OR_KEYWORD, default=value) for key, value in row.parameters.items()),
        *(kind(key, kind.KEYWORD_ONLY, default=value) for key, value in named.items()),
    ]
    vars(call)["__signature__"] = inspect.Signature(parameters)
    ending = {"max": ".values", "min": ".values"}.get(name, ".values()" if name in PER_ELEMENT else "")
    call.__doc__ = _text(
        name,
        [parameter.name for parameter in parameters],
        rest=f", like ``torch.{name}``; optionally of the stored elements only.",
        kind=f"What ``torch.{name}`` returns{_SPARSE if name in PER_ELEMENT else ''}.",
        raises="    OperandError: ``masked=True`` is given with a dense tensor.\n"
        "    IndexError: ``dim`` is out of range.",
        call=f"scorch.{name}(S, dim=1, masked=True){ending}",
    )


def document_masked(call: Callable[..., Any], name: str) -> None:
    """Give PyTorch's function ``torch.masked.name`` a docstring for sparse masks."""
    ending = ".values()" if name in PER_ELEMENT else ".long()" if name.startswith("arg") else ""
    call.__doc__ = _text(
        name,
        list(inspect.signature(call).parameters),
        rest=f" where a mask is True, like ``torch.masked.{name}``.",
        kind=f"What ``torch.masked.{name}`` returns{_SPARSE if name in PER_ELEMENT else ''}.",
        raises="    ShapeError: the mask cannot be broadcast to the shape of ``input``.",
        call=f"scorch.masked.{name}(S, dim=1, mask=S != 0){ending}",
    )


_SPARSE = "; a ``SparseTensor`` with the sparsity pattern of what counts, if that is sparse"


def _text(name: str, parameters: list[str], **words: str) -> str:
    row = TABLE[name]
    said = {**ARGUMENTS, "dim": ARGUMENTS["dim"] if name in PER_ELEMENT else OPTIONAL}
    arguments = "\n".join(f"    {key}: {said[key]}" for key in parameters)
    return TEXT.format(returns=row.returns, arguments=arguments, printed=row.example, **words)
