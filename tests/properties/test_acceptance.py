"""What dense torch refuses for given shapes, dtypes and arguments, sparse tensors refuse too, and no more.

The draws are the same at every run; ``--long`` makes a hundred times as many. A failure names its seed.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import TreeSpec, tree_flatten

import scorch
from properties.acceptance import (
    DTYPES,
    FEW_FORMATS,
    FORMATS,
    Call,
    Formats,
    call_of,
    changed,
    describe,
    other_shape,
    thinned,
    trouble,
)
from scorch import SparseTensor

PARTS = 8
CI_CASES = 200  # up to which every operator is called once
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def failures(calls: Iterator[tuple[str, Call | None]]) -> list[str]:
    """Every call that is answered otherwise than by dense torch, with its seed."""
    found = []
    for seed, call in calls:
        if call is None:
            continue
        told = str(call)
        what = trouble(call)
        if what is not None:
            found.append(f"{seed}: {told}\n    {what}")
    return found


# products --------------------------------------------------------------------------------------------

# The shapes of the tensors of a product, a letter for each size; of the tensor that is added to it first.
PRODUCTS: dict[str, tuple[Callable[..., Any], str]] = {
    "mm": (torch.mm, "ij,jk"),
    "mv": (torch.mv, "ij,j"),
    "bmm": (torch.bmm, "bij,bjk"),
    "dot": (torch.dot, "i,i"),
    "vdot": (torch.vdot, "i,i"),
    "inner": (torch.inner, "ij,kj"),
    "outer": (torch.outer, "i,j"),
    "matmul of matrices": (torch.matmul, "ij,jk"),
    "matmul of batches": (torch.matmul, "bij,bjk"),
    "matmul by a vector": (torch.matmul, "bij,j"),
    "matmul of a vector": (torch.matmul, "i,ij"),
    "linalg.matmul": (torch.linalg.matmul, "ij,jk"),
    "linalg.vecdot": (torch.linalg.vecdot, "ij,ij"),
    "linalg.multi_dot": (lambda *tensors: torch.linalg.multi_dot(tensors), "ij,jk,kl"),
    "chain_matmul": (torch.chain_matmul, "ij,jk,kl"),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 1), "ij,jk"),
    "tensordot of pairs": (lambda a, b: torch.tensordot(a, b, ([0, 1], [1, 0])), "ij,jik"),
    "kron": (torch.kron, "ij,kl"),
    "addmm": (torch.addmm, "ik,ij,jk"),
    "addmv": (torch.addmv, "i,ij,j"),
    "addr": (torch.addr, "ij,i,j"),
    "addbmm": (torch.addbmm, "ik,bij,bjk"),
    "baddbmm": (torch.baddbmm, "bik,bij,bjk"),
    "linear": (F.linear, "ij,kj"),
    "linear with bias": (F.linear, "ij,kj,k"),
    "linear of a batch": (F.linear, "bij,kj,k"),
    "bilinear": (F.bilinear, "bi,bj,kij"),
    "bilinear with bias": (F.bilinear, "bi,bj,kij,k"),
    "sparse.mm": (torch.sparse.mm, "ij,jk"),
    "sparse.addmm": (torch.sparse.addmm, "ik,ij,jk"),
}
SIZES = [0, 1, 1, 2, 3, 4]
SUMS = ("addmm", "addmv", "addr", "addbmm", "baddbmm")
NUMBERS = [1, 1, 0, 2, -1, 0.5, True, 1j, None, "x"]


def product(name: str, seed: str, formats: Formats) -> Call | None:
    """A product of tensors that fit, or of which some size, rank or dtype does not."""
    rng = random.Random(seed)
    function, shapes = PRODUCTS[name]
    sizes = {letter: rng.choice(SIZES) for letter in "bijkl"}
    dtype = rng.choice([torch.float32, torch.float32, torch.float32, torch.float64, torch.int64])
    tensors = []
    for letters in shapes.split(","):
        shape = tuple(sizes[letter] for letter in letters)
        if rng.random() < 0.3:
            shape = other_shape(shape, rng)
        own = rng.choice(DTYPES) if rng.random() < 0.1 else dtype
        generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
        tensors.append(thinned(torch.randint(-3, 4, shape, generator=generator).to(own), rng))
    kwargs = {}
    if name in SUMS and rng.random() < 0.5:
        kwargs = {"beta": rng.choice(NUMBERS), "alpha": rng.choice(NUMBERS)}
    form = rng.choice(["function", "method", "in place"])
    plain = getattr(function, "__name__", "")
    for kind, ending in (("method", ""), ("in place", "_")):
        method = getattr(torch.Tensor, plain + ending, None)
        if form == kind and method is not None:
            function = method
    form = "function" if form == "in place" and not hasattr(torch.Tensor, plain + "_") else form
    leaves, spec = tree_flatten((tuple(tensors), kwargs))
    if name == "sparse.mm" or name == "sparse.addmm":
        function = functools.partial(_as_dense, PRODUCTS[name][0])
    return call_of(name, form, function, leaves, spec, formats, rng)


def _as_dense(function: Callable[..., Any], *args: Any) -> Any:
    """``torch.sparse.mm`` and its like, which take no dense tensors only: they are ``mm`` then."""
    if any(isinstance(value, SparseTensor) for value in args):
        return function(*args)
    return getattr(torch, function.__name__.removeprefix("_sparse_"))(*args)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_accept_what_they_accept_of_dense_tensors(name, cases):
    draws = max(6, cases // 20)
    seeds = [f"{name} {number}" for number in range(draws)]
    formats = FORMATS if cases > CI_CASES else FEW_FORMATS
    found = failures((seed, product(name, seed, formats)) for seed in seeds)
    assert not found, "\n".join(found)


def _has_an_inner_size(name: str) -> bool:
    """Whether two tensors must agree in a size; ``torch.tensordot`` broadcasts."""
    operands = [set(letters) for letters in PRODUCTS[name][1].split(",")]
    return len(operands) == 2 and bool(operands[0] & operands[1]) and not name.startswith("tensordot")


@pytest.mark.parametrize("name", [name for name in PRODUCTS if _has_an_inner_size(name)])
@pytest.mark.parametrize("form", ["function", "gradients"])
def test_an_einsum_that_was_called_before_makes_no_product_of_an_inner_size_of_one(name, form):
    function, shapes = PRODUCTS[name]
    first, second = shapes.split(",")
    inner = [letter for letter in first if letter in second]
    for narrow, which in itertools.product(inner, (0, 1)):
        sizes = dict(zip("bijkl", (3, 4, 5, 6, 7), strict=True))
        dense = [torch.ones([sizes[letter] for letter in letters]) for letters in (first, second)]
        dense[which] = torch.ones(
            [1 if letter == narrow else sizes[letter] for letter in (first, second)[which]]
        )
        ours: list[Any] = [scorch.from_torch(dense[0], format="s" * len(first)), dense[1]]
        if form == "gradients":
            ours[0].requires_grad_()
        try:
            wanted: Any = function(*dense)
        except RuntimeError:
            wanted = None
        for _ in range(2):
            scorch.einsum(f"{first},{second}->{''.join(sorted(set(first + second) - set(inner)))}", *ours)
            if wanted is None:
                with pytest.raises(RuntimeError):
                    function(*ours)
            else:
                torch.testing.assert_close(torch.as_tensor(function(*ours)).detach(), wanted)


# every operator --------------------------------------------------------------------------------------

# Left out, with the reason.
LEFT_OUT = {
    "indices that are written to have tests of their own": (
        "as_strided_scatter diagonal_scatter index_add index_copy index_fill index_put index_reduce "
        "masked_scatter put scatter scatter_add scatter_reduce select_scatter slice_scatter"
    ),
    "dense torch itself crashes, or reads what is not there": (
        "grid_sampler_2d grid_sampler_3d lu_unpack native_batch_norm nn.functional.embedding_bag"
    ),
    "not defined by its arguments: singular values next to zero, signs of vectors": (
        "linalg.pinv linalg.solve pca_lowrank pinverse svd_lowrank"
    ),
    "a sparse tensor has no strides": "as_strided",
}


def operators() -> dict[str, list[Any]]:
    pytest.importorskip("expecttest")
    from tools.what_works.operators import all_operators

    omitted = set(" ".join(LEFT_OUT.values()).split())
    return {name: infos for name, infos in all_operators().items() if name not in omitted}


def samples(info: Any, rng: random.Random, most: int) -> list[tuple[list[Any], TreeSpec]]:
    """Arguments that torch tests, of tensors in memory of its usual kind; ``most`` are asked for by dtype."""
    usual = (torch.float32, torch.int64, torch.complex64, torch.bool)
    kinds = [dtype for dtype in usual if info.supports_dtype(dtype, "cpu")]
    found = []
    for dtype in dict.fromkeys([*kinds[:1], *rng.sample(kinds, min(1, len(kinds)))]):
        torch.manual_seed(0)
        for sample in itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=False), most):
            kwargs = {name: value for name, value in sample.kwargs.items() if name != "memory_format"}
            leaves, spec = tree_flatten(((sample.input, *sample.args), kwargs))
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            is_small = sum(leaf.numel() for leaf in tensors) <= 3000
            if tensors and is_small and all(leaf.layout == torch.strided for leaf in tensors):
                found.append((leaves, spec))
    return found


def drawn(info: Any, given: list[tuple[list[Any], TreeSpec]], seed: str, formats: Formats) -> Call | None:
    """A call of an operator with arguments that torch tests, some of which are changed."""
    rng = random.Random(seed)
    forms = {"function": info.op, "method": info.method_variant, "in place": info.inplace_variant}
    form = rng.choice([form for form, function in forms.items() if function is not None])
    leaves, spec = rng.choice(given)
    base = [thinned(leaf, rng) if _is_number(leaf) else leaf for leaf in leaves]
    notes: list[str] = []
    base = changed(base, rng, notes)
    if info.name == "logit" and any(isinstance(leaf, float | int) and leaf > 0.5 for leaf in base):
        return None  # torch clamps between bounds in the wrong order, to one of them or the other
    function = forms[form]
    if form == "function" and info.supports_out and rng.random() < 0.1:
        function, note = _with_out(function, base, spec, rng)
        notes.append(note)
    call = call_of(info.name, form, function, base, spec, formats, rng)
    if call is not None:
        call.notes += notes
    return call


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def _with_out(
    function: Callable[..., Any], base: list[Any], spec: TreeSpec, rng: random.Random
) -> tuple[Callable[..., Any], str]:
    """The function with ``out=`` of a shape and dtype that fit or not."""
    shape, dtype = (2, 3), torch.float32
    args, kwargs = spec.unflatten([leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in base])
    try:
        probe = function(*args, **kwargs)
        shape, dtype = (
            (tuple(probe.shape), probe.dtype) if isinstance(probe, torch.Tensor) else (shape, dtype)
        )
    except Exception:  # whatever torch says: then the call is refused with out= as well
        pass
    shape = shape if rng.random() < 0.6 else other_shape(shape, rng)
    dtype = dtype if rng.random() < 0.6 else rng.choice(DTYPES)

    def with_out(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs, out=torch.zeros(shape, dtype=dtype))

    return with_out, f"out={describe(torch.zeros(shape, dtype=dtype))}"


@pytest.fixture
def no_search(monkeypatch):
    """Whoever asks torch for samples is not looked for on the stack.

    It would be a test of ``unittest``, which nobody is here, and each look takes a quarter of a second.
    """
    pytest.importorskip("expecttest")
    for module in ("common_utils", "opinfo.core"):
        monkeypatch.setattr(f"torch.testing._internal.{module}.extract_test_fn", lambda: None, raising=False)


@pytest.mark.sampled(8)
@pytest.mark.usefixtures("no_search")
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_accept_what_they_accept_of_dense_tensors(part, cases):
    draws, formats = max(1, cases // CI_CASES), FORMATS if cases > CI_CASES else FEW_FORMATS

    def calls() -> Iterator[tuple[str, Call | None]]:
        for name, infos in list(operators().items())[part::PARTS]:
            for info in infos[: None if draws > 1 else 1]:
                given = samples(info, random.Random(name), 24 if draws > 1 else 6)
                for number in range(draws if given else 0):
                    seed = f"{name} {info.variant_test_name} {number}"
                    yield seed, drawn(info, given, seed, formats)

    found = failures(calls())
    assert not found, "\n".join(found)
