"""Calls with any arguments on dense and on sparse tensors: what torch accepts, we do, and what it refuses.

A call that torch tests is changed: a tensor gets another shape or dtype, a number or a flag another value or
type. Dense torch is the specification. Where it accepts the call, sparse tensors give the equal result, or
refuse with ``UnsupportedError`` or ``DensityError``; where it refuses, they refuse with an error of the same
type. ``EXTENSIONS`` and ``REFUSALS`` are all that may differ.
"""

from __future__ import annotations

import math
import random
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_leaves, tree_unflatten

import scorch
from scorch import Format, SparseTensor
from scorch.errors import DensityError, ScorchError, UnsupportedError

# What sparse tensors answer though dense torch refuses: the operator, and what torch's message says.
EXTENSIONS: list[tuple[str, str, str]] = [
    ("", "not implemented for", "kernels are generated for every dtype, also where torch has none"),
    (
        "einsum",
        "expected scalar type|same dtype",
        "einsum takes mixed dtypes, with torch's rules of promotion",
    ),
]
# What sparse tensors refuse by another error than UnsupportedError though dense torch answers. Besides, torch
# does not look at all arguments where a tensor has no elements; what it else refuses may be refused there.
REFUSALS: list[tuple[str, str, str]] = [
    ("", "torch.complex32 is not supported", "there are no sparse tensors of complex32"),
    ("squeeze_", "would make a sparse tensor dense", "an element alone is a dense tensor"),
    ("solve_triangular", "zero on its diagonal", "torch divides by zero"),
    ("addbmm_", "broadcast shape|returns shape", "torch resizes the tensor that it writes to"),
]

Formats = dict[int, list[str]]
FORMATS: Formats = {
    1: ["s", "o"],
    2: ["csr", "csc", "coo", "dcsr", "bsr(2,2)"],
    3: ["sss", "ooo", "dds"],
    4: ["ssss", "oooo"],
}
FEW_FORMATS: Formats = {1: ["s"], 2: ["csr"], 3: ["sss"], 4: ["ssss"]}  # so that few kernels are compiled
DTYPES = [
    torch.float32,
    torch.float64,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.bfloat16,
    torch.int32,
]
TOLERANCE = {torch.bfloat16: 5e-2, torch.float16: 1e-2, torch.float32: 1e-4, torch.complex64: 1e-4}
MOST_ELEMENTS = 4000
ORDERED = {
    "argsort",
    "kthvalue",
    "median",
    "mode",
    "msort",
    "nanmedian",
    "sort",
    "topk",
}  # of equals any place


@dataclass
class Call:
    """The same arguments dense and, some of them, sparse; ``form`` is function, method or in place."""

    name: str
    form: str
    function: Callable[..., Any]
    dense: list[Any]
    ours: list[Any]
    spec: TreeSpec
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.name} {self.form}({', '.join(map(describe, self.ours))}) {' '.join(self.notes)}"


def describe(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    kind = str(value.format) if isinstance(value, SparseTensor) else "dense"
    grad = " grad" if value.requires_grad else ""
    return f"<{kind} {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}{grad}>"


# drawing ---------------------------------------------------------------------------------------------


def thinned(values: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Half of the values set to zero."""
    kept = torch.rand(values.shape, generator=torch.Generator().manual_seed(rng.randrange(1 << 30))) < 0.5
    return torch.where(kept, values.detach(), torch.zeros_like(values))


def sparse_of(tensor: torch.Tensor, formats: Formats, rng: random.Random) -> torch.Tensor | None:
    """The tensor in a format that is drawn; None where it has none."""
    forms = formats.get(tensor.dim())
    if forms is None:
        return None
    form = rng.choice(forms)
    named = form if tensor.dim() == 2 else Format(form, dims=tensor.dim())
    found = scorch.from_torch(tensor.detach().clone(), format=named)
    return found if isinstance(found, SparseTensor) else None


def other_shape(shape: tuple[int, ...], rng: random.Random) -> tuple[int, ...]:
    """A shape that is a little different: a size of 1 above all, or another rank."""
    sizes, how = list(shape), rng.choice("111200+-dasn")
    if how == "n":
        return ()
    if how == "d" and sizes:
        del sizes[rng.randrange(len(sizes))]
    elif how == "a":
        sizes.insert(rng.randrange(len(sizes) + 1), rng.choice([1, 1, 2]))
    elif how == "s":
        rng.shuffle(sizes)
    elif sizes:
        place = rng.randrange(len(sizes))
        now = sizes[place]
        sizes[place] = {"2": 2, "0": 0, "+": now + 1, "-": max(0, now - 1)}.get(how, 1)
    return tuple(sizes)


def with_shape(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The same values again and again, in another shape."""
    count = math.prod(shape)
    if count > MOST_ELEMENTS:
        return tensor
    flat = tensor.detach().reshape(-1)
    flat = flat if flat.numel() else torch.ones(1, dtype=tensor.dtype)
    return flat.repeat(count // flat.numel() + 1)[:count].reshape(shape)


def _other_tensor(tensor: torch.Tensor, rng: random.Random) -> Any:
    how = rng.random()
    if how < 0.62:
        return with_shape(tensor, other_shape(tuple(tensor.shape), rng))
    if how < 0.9:
        return tensor.to(rng.choice(DTYPES))
    return rng.choice([None, 2, 1.5, "a", [1.0, 2.0]])


def other_value(value: Any, rng: random.Random) -> Any:
    """Another value for an argument, of the same type or of one that is wrong."""
    match value:
        case torch.Tensor():
            return _other_tensor(value, rng)
        case bool():
            return rng.choice([not value, None, "yes", 1, 0.5])
        case int():
            near = [value + 1, value - 1, -value]
            return rng.choice([*near, 0, -1, 1, 2, 5, -5, None, "x", 1.5, True, (0, 1), (0, 0)])
        case float():
            return rng.choice([-value, 0.0, 2, None, "x", True, 1j, math.inf])
        case str():
            return rng.choice([value[:-1], "", None, 1])
        case torch.dtype():
            return rng.choice([*DTYPES, None, "x"])
        case None:
            return rng.choice([0, 1, -1, 1.5, "x", True, 5])
    return value


def changed(leaves: list[Any], rng: random.Random, notes: list[str]) -> list[Any]:
    """The arguments, of which mostly one is another."""
    found = list(leaves)
    for _ in range(rng.choice([0, 1, 1, 1, 1, 2])):
        place = rng.randrange(len(found))
        before, found[place] = found[place], other_value(found[place], rng)
        notes.append(f"[{place}] {describe(before)} -> {describe(found[place])}")
    return found


def call_of(
    name: str,
    form: str,
    function: Callable[..., Any],
    base: list[Any],
    spec: TreeSpec,
    formats: Formats,
    rng: random.Random,
) -> Call | None:
    """The call with some of its tensors sparse, and with or without gradients; None if none can be sparse."""
    places = [n for n, value in enumerate(base) if isinstance(value, torch.Tensor) and value.dim()]
    data = [n for n in places if base[n].dtype != torch.int64 or n == places[0]]
    if not places:
        return None
    sparse = rng.sample(places, rng.randint(1, len(places))) if rng.random() < 0.5 else [rng.choice(data)]
    is_tracked = form != "in place" and rng.random() < 0.25
    dense: list[Any] = []
    ours: list[Any] = []
    for place, value in enumerate(base):
        if not isinstance(value, torch.Tensor):
            dense.append(value)
            ours.append(value)
            continue
        plain = value.detach().clone()
        own = sparse_of(plain, formats, rng) if place in sparse else None
        own = plain.clone() if own is None else own
        if is_tracked and (plain.is_floating_point() or plain.is_complex()):
            plain.requires_grad_()
            own.requires_grad_()
        dense.append(plain)
        ours.append(own)
    if not any(isinstance(value, SparseTensor) for value in ours):
        return None
    return Call(name, form, function, dense, ours, spec)


# comparing -------------------------------------------------------------------------------------------


def attempt(call: Call, leaves: list[Any], seed: int = 5) -> Any:
    """The result, or the exception."""
    args, kwargs = tree_unflatten(leaves, call.spec)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call.function(*args, **kwargs)
        except Exception as error:
            return error


def _plain(values: Any) -> list[Any]:
    """All results as dense tensors and numbers."""
    found = []
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor):
            leaf = leaf.detach()
            is_strided = leaf.layout == torch.strided and not isinstance(leaf, SparseTensor)
            leaf = leaf if is_strided else leaf.to_dense()
            found.append(leaf.resolve_conj().resolve_neg())
        elif leaf is not None:
            found.append(leaf)
    return found


def _difference(found: list[Any], wanted: list[Any]) -> str | None:
    if len(found) != len(wanted):
        return f"{len(found)} results instead of {len(wanted)}"
    for one, other in zip(found, wanted, strict=True):
        if not isinstance(other, torch.Tensor):
            same = one == other or (isinstance(other, float) and math.isclose(one, other, rel_tol=1e-4))
            if not same and not (one != one and other != other):
                return f"{one!r} instead of {other!r}"
            continue
        limit = TOLERANCE.get(other.dtype, 1e-7)
        try:
            torch.testing.assert_close(one, other, rtol=limit, atol=limit, equal_nan=True, check_stride=False)
        except AssertionError as error:
            return " ".join(str(error).split())[:240]
    return None


def _is_listed(table: list[tuple[str, str, str]], name: str, message: str) -> bool:
    return any((not own or own == name) and re.search(words, message) for own, words, _ in table)


def trouble(call: Call) -> str | None:
    """What sparse tensors do otherwise than dense ones; None where that is nothing."""
    wanted, found = attempt(call, call.dense), attempt(call, call.ours)
    name = call.name.rpartition(".")[2] + ("_" if call.form == "in place" else "")
    if isinstance(wanted, Exception):
        return _trouble_of_refusal(call, name, wanted, found)
    if isinstance(found, UnsupportedError | DensityError):
        return None
    if isinstance(found, Exception):
        is_empty = any(isinstance(leaf, torch.Tensor) and not leaf.numel() for leaf in call.dense)
        is_listed = is_empty or _is_listed(REFUSALS, name, str(found))
        return None if is_listed else f"refused, but torch accepts it: {found!r}"
    result, right = _plain(found), _plain(wanted)
    if call.name in ORDERED:
        result, right = ([v for v in values if v.dtype != torch.int64] for values in (result, right))
    difference = _difference(result, right)
    if difference is not None:
        others = [attempt(call, [_renewed(value) for value in call.dense], seed) for seed in range(90, 94)]
        is_random = any(_difference(_plain(other), right) is not None for other in others)
        return None if is_random else f"wrong: {difference}"
    tensors = [[leaf for leaf in side if isinstance(leaf, torch.Tensor)] for side in (call.ours, call.dense)]
    difference = _difference(*map(_plain, tensors)) if call.form == "in place" else None
    return None if difference is None else f"wrong tensor afterwards: {difference}"


def _renewed(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _trouble_of_refusal(call: Call, name: str, wanted: Exception, found: Any) -> str | None:
    if isinstance(wanted, AttributeError):  # a function of Python that met an argument of a wrong type
        return None
    if not isinstance(found, Exception):
        is_listed = _is_listed(EXTENSIONS, name, str(wanted))
        results = [describe(value) for value in tree_leaves(found)]
        return None if is_listed else f"accepted as {results}, but torch refuses it: {wanted!r}"
    if not isinstance(found, type(wanted)):
        return f"refused by {found!r}, but by torch with {wanted!r}"
    if call.form != "in place" and isinstance(found, ScorchError):
        before = _plain([v for v in call.dense if isinstance(v, torch.Tensor)])
        after = _plain([v for v in call.ours if isinstance(v, torch.Tensor)])
        if _difference(after, before) is not None:
            return "changed by a call that was refused"
    return None
