"""Products added to something: ``beta * input + alpha * (a @ b)`` and similar, and products of several."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch._src.ops.fallback import run_torch, write_out
from scorch._src.ops.products import matmul
from scorch._src.statements.autocast import cast, casts_vectors, is_autocast, without_autocast
from scorch._src.statements.einsum import einsum
from scorch._src.tensor.autograd import placed, sparse_of, values_of
from scorch._src.tensor.broadcast import broadcast_shape
from scorch._src.tensor.check_call import check_call
from scorch._src.tensor.entries import Entries, format_for, from_entries
from scorch._src.tensor.registry import implements, implements_differentiable
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import CallError

aten = torch.ops.aten


def _scale(tensor: torch.Tensor, factor: Any) -> torch.Tensor:
    """Multiply by ``factor``, of which only the integer part counts for integer tensors, as in torch."""
    whole = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    number = int(factor) if whole else factor
    return tensor if number == 1 else tensor * number


def add_scaled(self: torch.Tensor, product: torch.Tensor, beta: Any, alpha: Any) -> torch.Tensor:
    """Return ``beta * self + alpha * product``; with ``beta`` 0, NaN in ``self`` does not matter."""
    if beta == 0:
        wide = broadcast_shape(self.shape, product.shape)
        return _scale(product, alpha).expand(wide)
    return _scale(self, beta) + _scale(product, alpha)


def _define_added(name: str, product: Callable[..., Any], first: str, second: str) -> Callable[..., Any]:
    """Define ``beta * self + alpha * product(first, second)``, with torch's names of the factors."""
    function = getattr(torch, name)

    def added(self: Any, *factors: Any, beta: Any = 1, alpha: Any = 1, **named: Any) -> Any:
        check_call(function, self, *factors, beta=beta, alpha=alpha, **named)
        factors += tuple(named[factor] for factor in (first, second)[len(factors) :])
        if is_autocast() and (function is not torch.addmv or casts_vectors(self.device)):
            self, factors = cast(self)[0], cast(*factors)
        return add_scaled(self, product(*factors), beta, alpha)

    implements(getattr(aten, name).default)(added)
    return implements_differentiable(function, getattr(torch.Tensor, name))(added)


addmm = _define_added("addmm", matmul.mm, "mat1", "mat2")
_define_added("addmv", matmul.mv, "mat", "vec")
_define_added("baddbmm", matmul.bmm, "batch1", "batch2")
_define_added("addbmm", functools.partial(einsum, "bij,bjk->ik"), "batch1", "batch2")


@implements(torch.matrix_power, torch.Tensor.matrix_power, torch.linalg.matrix_power)
def matrix_power(input: Any, n: int, *, out: Any = None) -> Any:
    """``input`` multiplied with itself; no times is the unit matrix, which is sparse too."""
    is_square = isinstance(input, SparseTensor) and input.dim() == 2 and input.shape[0] == input.shape[1]
    if n == 0 and is_square and out is None:
        size = input.shape[0]
        ones = torch.ones(size, dtype=input.dtype, device=input.storage.device)
        places = Entries(torch.arange(size, device=input.storage.device) * (size + 1), ones, (size, size))
        return from_entries(places, format_for(input, (size, size)))
    if out is not None and isinstance(n, int) and n >= 0:
        check_call(torch.matrix_power, input, n, out=out)
    return run_torch(torch.matrix_power, input, n, **({} if out is None else {"out": out}))


@implements_differentiable(torch.dot, torch.Tensor.dot)
@implements(aten.dot.default)
def dot(self: Any, tensor: Any) -> Any:
    check_call(torch.dot, self, tensor)
    with without_autocast(self.device):
        return einsum("i,i->", self, tensor)


@implements_differentiable(torch.vdot, torch.Tensor.vdot)
@implements(aten.vdot.default)
def vdot(self: Any, other: Any) -> Any:
    """As ``dot``, of the first vector's complex conjugate."""
    check_call(torch.vdot, self, other)
    with without_autocast(self.device):
        return einsum("i,i->", self.conj() if self.is_complex() else self, other)


@implements(torch.kron, torch.Tensor.kron, differentiable=True)
def kron(input: Any, other: Any, *, out: Any = None) -> Any:
    """The Kronecker product: every entry of one with every entry of the other; COO if they are."""
    if out is not None:
        check_call(torch.kron, input, other, out=out)
        return write_out(out, kron(input, other), "kron")
    rank = max(input.dim(), other.dim())
    if not 0 < rank <= 8:
        return input * other
    first, second = (part.reshape((1,) * (rank - part.dim()) + tuple(part.shape)) for part in (input, other))
    i, j = "abcdefgh"[:rank], "ijklmnop"[:rank]
    pairs = "".join(map("".join, zip(i, j, strict=True)))
    is_list = all(part.format.is_list for part in (first, second) if isinstance(part, SparseTensor))
    product = einsum(f"{i},{j}->{pairs}", first, second, format="coo" if is_list else "csf")
    return product.reshape([a * b for a, b in zip(first.shape, second.shape, strict=True)])


# as einsums, for gradients that follow the entries ---------------------------------------------------


@implements_differentiable(torch.inner, torch.Tensor.inner)
def inner(input: Any, other: Any) -> Any:
    """The sum of products along the last dimensions of both."""
    check_call(torch.inner, input, other)
    if is_autocast() and input.dim() and other.dim():
        input, other = cast(input, other)
    if not input.dim() or not other.dim():
        return input * other
    a, b = "abcdefgh"[: input.dim() - 1], "ijklmnop"[: other.dim() - 1]
    return einsum(f"{a}z,{b}z->{a}{b}", input, other)


@implements_differentiable(torch.outer, torch.Tensor.outer, torch.ger, torch.Tensor.ger)
def outer(input: Any, vec2: Any) -> Any:
    check_call(torch.outer, input, vec2)
    return einsum("i,j->ij", input, vec2)


@implements_differentiable(torch.tensordot)
def tensordot(a: Any, b: Any, dims: Any = 2, out: Any = None) -> Any:
    """The sum of products over pairs of dimensions, or over the last of ``a`` and the first of ``b``."""
    if isinstance(dims, torch.Tensor):
        dims = dims.tolist()
    check_call(torch.tensordot, a, b, dims, out=out)
    if is_autocast():
        a, b = cast(a, b)
    if isinstance(dims, int):
        dims = (list(range(a.dim() - dims, a.dim())), list(range(dims)))
    over_a, over_b = ([d % t.dim() for d in own] for own, t in zip(dims, (a, b), strict=True))
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    first = [next(letters) for _ in range(a.dim())]
    second = [first[over_a[over_b.index(d)]] if d in over_b else next(letters) for d in range(b.dim())]
    kept = [first[d] for d in range(a.dim()) if d not in over_a]
    kept += [second[d] for d in range(b.dim()) if d not in over_b]
    return einsum(f"{''.join(first)},{''.join(second)}->{''.join(kept)}", a, b)


@implements_differentiable(torch.linalg.multi_dot)
def multi_dot(tensors: Sequence[Any], *, out: Any = None) -> Any:
    check_call(torch.linalg.multi_dot, tensors, out=out)
    return functools.reduce(matmul.matmul, tensors)


@implements_differentiable(torch.chain_matmul)
def chain_matmul(*matrices: Any, out: Any = None) -> Any:
    check_call(torch.chain_matmul, *matrices, out=out)
    return functools.reduce(matmul.mm, matrices)


def _unit(input: Any, unit: Any) -> Any:
    """A unit matrix connected to the matrix that it is a power of, on which it does not depend."""
    if not isinstance(input, SparseTensor) or not isinstance(unit, SparseTensor):
        return torch.where(torch.ones_like(unit, dtype=torch.bool), unit, input.to_dense())
    stored = unit.storage
    own = placed(values_of(input), input.storage.pattern, stored.pattern)
    return sparse_of(stored.pattern, torch.where(stored.pattern.present, stored.values, own))


@implements_differentiable(torch.matrix_power, torch.Tensor.matrix_power, torch.linalg.matrix_power)
def differentiable_power(input: Any, n: int, *, out: Any = None) -> Any:
    """As ``matrix_power``, by squaring, each product differentiated at the patterns of its factors."""
    if out is not None:
        raise CallError("matrix_power: functions with out=... do not support automatic differentiation")
    if n < 0:
        return torch.matrix_power(input.to_dense(), n)
    if n == 0:
        return _unit(input, matrix_power(input.detach(), 0))
    if n == 1:
        return input.clone()
    found = None
    while n:
        if n % 2:
            found = input if found is None else matmul.matmul(found, input)
        n //= 2
        input = matmul.matmul(input, input) if n else input
    return found
