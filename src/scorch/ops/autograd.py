"""Statements on tensors that are learned: one rule for all of tensor algebra.

Every statement is a function of arrays: dense tensors, and the values of sparse ones, whose patterns are
fixed. Its gradients are statements again (``notation.differentiate``), sampled at the patterns of sparse
operands, and run the same way; so there are gradients of any order, forward derivatives, and ``torch.func``.
"""

from __future__ import annotations

import contextvars
import functools
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._C._functorch import is_legacy_batchedtensor

from scorch.errors import UnsupportedError
from scorch.formats import Format, as_format
from scorch.notation.differentiate import Gradient, Tangent, gradients, tangent
from scorch.notation.indexing import parse
from scorch.notation.nodes import Access, Assign, Expr
from scorch.notation.show import show
from scorch.notation.trees import accesses, substitute
from scorch.tensor.learning import (
    apply,
    learned_of,
    placed,
    sparse_of,
    unknown_outside,
    values_of,
    watcher_of,
)
from scorch.tensor.sparse_tensor import SparseTensor
from scorch.tensor.storage import Pattern, Storage
from scorch.tensor.tracking import is_learning, untracked

Result = SparseTensor | torch.Tensor
Run = Callable[..., Result]
Source = weakref.ref[torch.Tensor] | None

UNREAD = contextvars.ContextVar("UNREAD", default=False)  # only gradients are asked for, not the result
RUN: list[Run] = []  # ``evaluate``, which stands above this file


@dataclass(frozen=True)
class Piece:
    """An operand or a result: the values of the entries of ``pattern``, or a dense tensor if it is None.

    ``source`` is what is learned of an operand: the sparse tensor itself, or values that it was made of.
    """

    array: torch.Tensor
    pattern: Pattern | None = None
    source: Source = None

    @staticmethod
    def of(tensor: Any) -> Piece:
        if isinstance(tensor, SparseTensor):
            values = values_of(tensor, in_statement=True)
            return Piece(values, tensor.storage.pattern, weakref.ref(learned_of(tensor)))
        return Piece(tensor)

    def tensor(self) -> Result:
        """What users hold, connected to the array."""
        return self.array if self.pattern is None else sparse_of(self.pattern, self.array)


@dataclass
class Call:
    """One run of a statement: what it is, and where the result's pattern is put once it is known."""

    text: str
    names: tuple[str, ...]
    patterns: tuple[Pattern | None, ...]
    format: Any
    run: Run
    sparse_grad: bool = False
    sources: tuple[Source, ...] = ()
    pattern: Pattern | None = field(default=None)

    @property
    def assign(self) -> Assign:
        return parse(self.text).assign

    def shape(self, arrays: Sequence[torch.Tensor], place: int) -> tuple[int, ...]:
        """The shape of an operand."""
        pattern = self.patterns[place]
        return tuple(arrays[place].shape) if pattern is None else pattern.shape

    def sizes(self, arrays: Sequence[torch.Tensor]) -> dict[str, int]:
        """The size of every index."""
        found: dict[str, int] = {}
        for access in accesses(self.assign.value):
            shape = self.shape(arrays, self.names.index(access.tensor))
            found.update(zip(access.indices, shape, strict=True))
        return found


def learned(
    text: str,
    names: Sequence[str],
    operands: Sequence[Any],
    format: Any,
    run: Run,
    sparse_grad: bool = False,
) -> Result:
    """The result of a statement, connected to its operands; ``run`` computes it from plain tensors."""
    pieces = [Piece.of(operand) for operand in operands]
    return _computed(text, tuple(names), pieces, format, run, sparse_grad).tensor()


def _computed(
    text: str,
    names: tuple[str, ...],
    pieces: Sequence[Piece],
    format: Any,
    run: Run,
    sparse_grad: bool = False,
) -> Piece:
    arrays = [piece.array for piece in pieces]
    patterns, sources = tuple(piece.pattern for piece in pieces), tuple(piece.source for piece in pieces)
    call = Call(text, names, patterns, format, run, sparse_grad, sources)
    if is_learning(*arrays):
        return Piece(apply(_Statement, call, *arrays), call.pattern)
    if any(map(is_legacy_batchedtensor, arrays)):
        return Piece(_gradients_of_batch(call, arrays), call.pattern)
    return Piece(_forward(call, arrays), call.pattern)


def _forward(call: Call, arrays: Sequence[torch.Tensor]) -> torch.Tensor:
    given = [
        _plain(array) if pattern is None else SparseTensor(Storage(pattern, _plain(array).contiguous()))
        for array, pattern in zip(arrays, call.patterns, strict=True)
    ]
    found = call.run(*given)
    if isinstance(found, SparseTensor):
        call.pattern = found.storage.pattern
        return found.storage.values
    return found


def _plain(array: torch.Tensor) -> torch.Tensor:
    array = array.detach()
    return array.resolve_conj().resolve_neg() if array.is_conj() or array.is_neg() else array


def _unread(call: Call, arrays: Sequence[torch.Tensor]) -> torch.Tensor:
    """A result of the right shape and dtype without its numbers."""
    sizes = call.sizes(arrays)
    dtype = functools.reduce(torch.promote_types, [array.dtype for array in arrays])
    return torch.zeros((), dtype=dtype, device="cpu").expand([sizes[i] for i in call.assign.target.indices])


def run_text(text: str, names: tuple[str, ...], format: Any) -> Run:
    """What computes a statement from its text."""
    evaluate = RUN[0]

    def run(*tensors: Any) -> Result:
        return evaluate(text, format=format, **dict(zip(names, tensors, strict=True)))

    return run


class _Statement(torch.autograd.Function):
    """A statement as a function of arrays."""

    @staticmethod
    def forward(call: Call, *arrays: torch.Tensor) -> torch.Tensor:
        if UNREAD.get() and call.format == "dense":
            return _unread(call, arrays)
        found = _forward(call, arrays)
        return found.detach() if any(found is array for array in arrays) else found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        call, *arrays = inputs
        ctx.call = call
        ctx.save_for_backward(*arrays)
        ctx.save_for_forward(*arrays)

    @staticmethod
    def backward(ctx: Any, incoming: torch.Tensor) -> Any:
        call, arrays = ctx.call, ctx.saved_tensors
        found = []
        for place, needed in enumerate(ctx.needs_input_grad[1:]):
            is_float = arrays[place].is_floating_point() or arrays[place].is_complex()
            watcher = watcher_of(call.sources[place]) if needed and call.sources else None
            if watcher is not None:
                if call.pattern is not None:  # what comes back is known at the places of the result alone
                    raise unknown_outside()
                watcher(call, arrays, place, incoming.detach())
            found.append(_gradient(call, arrays, place, incoming) if needed and is_float else None)
        return None, *found

    @staticmethod
    def jvp(ctx: Any, _: Any, *changes: Any) -> Any:
        return _change(ctx.call, ctx.saved_tensors, changes)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], call: Call, *arrays: torch.Tensor) -> Any:
        return _batched(call, arrays, in_dims[1:], info.batch_size)


# backward --------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def rules(
    text: str, tensor: str, incoming: str, mask: str | None, again: bool = False
) -> tuple[tuple[Gradient, str], ...]:
    """The gradients for each use of ``tensor``, with their texts; ``again``: they are differentiated too."""
    found = gradients(parse(text).assign, tensor, incoming, mask, again)
    return tuple((rule, show(rule.statement)) for rule in found)


def _fresh(name: str, names: Sequence[str]) -> str:
    while name in names:
        name += "_"
    return name


def seeded(
    call: Call, arrays: Sequence[torch.Tensor], place: int, incoming: torch.Tensor
) -> tuple[str, str | None, dict[str, Piece]]:
    """What gradients are statements of: the names of the incoming one and of a mask, and all tensors."""
    pattern = call.patterns[place]
    taken = (call.text.partition("[")[0].partition("=")[0].strip(), *call.names)
    seed = _fresh("G", (*taken, *_index_names(call.text)))
    mask = None if pattern is None else _fresh("P", (*taken, seed, *_index_names(call.text)))
    pieces = {seed: Piece(incoming, call.pattern)}
    sources = call.sources or (None,) * len(arrays)
    for name, own, other, source in zip(call.names, call.patterns, arrays, sources, strict=True):
        pieces[name] = Piece(other.conj() if other.is_complex() else other, own, source)
    if mask is not None and pattern is not None:
        pieces[mask] = Piece(pattern.mask(arrays[place].dtype), pattern)
    return seed, mask, pieces


def _gradient(call: Call, arrays: Sequence[torch.Tensor], place: int, incoming: torch.Tensor) -> Any:
    """The gradient of the array at ``place``: values on its pattern, or a dense tensor."""
    array = arrays[place]
    seed, mask, pieces = seeded(call, arrays, place, incoming)
    total: torch.Tensor | None = None
    again = is_learning(incoming, *arrays)
    for rule, text in rules(call.text, call.names[place], seed, mask, again):
        found = _run_rule(call, arrays, place, rule, text, pieces)
        total = found if total is None else total + found
    if total is None:
        return None
    return total.real if total.is_complex() and not array.is_complex() else total


def _run_rule(
    call: Call,
    arrays: Sequence[torch.Tensor],
    place: int,
    rule: Gradient,
    text: str,
    pieces: Mapping[str, Piece],
) -> torch.Tensor:
    pattern, array = call.patterns[place], arrays[place]
    shape = call.shape(arrays, place)
    given = {**pieces, **diagonals(rule, call, arrays, array.dtype)}
    names = _tensors_of(text)
    used = [given[name] for name in names]
    asked: Any = "dense" if pattern is None else pattern.format
    if pattern is None and call.sparse_grad and len(rule.dims) == len(shape):
        asked = _touched(rule.statement, dict(zip(names, used, strict=True)))
    found = _computed(text, names, used, asked, run_text(text, names, asked))
    value = found.array
    if rule.repeated:
        sizes = call.sizes(arrays)
        value = value * math.prod(sizes[index] for index in rule.repeated)
    if pattern is not None:
        assert found.pattern is not None or not pattern.shape
        value = placed(value, found.pattern if found.pattern is not None else shape, pattern)
    elif found.pattern is not None:
        return sparse_of(found.pattern, value.to(array.dtype))
    elif len(rule.dims) < len(shape):
        missing = [dim for dim in range(len(shape)) if dim not in rule.dims]
        for dim in missing:
            value = value.unsqueeze(dim)
        value = value.expand(shape)
    return value if value.is_complex() and not array.is_complex() else value.to(array.dtype)


def _touched(statement: Assign, pieces: Mapping[str, Piece]) -> Any:
    """The format of a gradient that stores those rows, or columns, only that a sparse tensor meets."""
    met: set[str] = set()
    for access in accesses(statement.value):
        pattern = pieces[access.tensor].pattern
        if pattern is not None:
            levels = zip(pattern.format.order, pattern.format.levels, strict=True)
            met |= {access.indices[dim] for dim, level in levels if not level.is_full}
    indices = statement.target.indices
    first = next((dim for dim, index in enumerate(indices) if index in met), None)
    if first is None:
        return "dense"
    others = [dim for dim in range(len(indices)) if dim != first]
    return Format("s" + "d" * len(others), order=(first, *others))


@functools.lru_cache(maxsize=1024)
def _tensors_of(text: str) -> tuple[str, ...]:
    """The tensors that a statement reads."""
    return tuple(dict.fromkeys(access.tensor for access in accesses(parse(text).assign.value)))


def _index_names(text: str) -> frozenset[str]:
    return _indices_of(parse(text).assign)


@functools.lru_cache(maxsize=1024)
def _indices_of(assign: Assign) -> frozenset[str]:
    found = set(assign.target.indices)
    for access in accesses(assign.value):
        found |= set(access.indices)
    return frozenset(found)


def diagonals(
    rule: Gradient | Tangent, call: Call, arrays: Sequence[torch.Tensor], dtype: torch.dtype
) -> dict[str, Piece]:
    """The identity matrices that a derivative needs."""
    if not rule.diagonals:
        return {}
    sizes = call.sizes(arrays)
    return {name: identity(sizes[index], dtype) for name, index in rule.diagonals}


def identity(size: int, dtype: torch.dtype) -> Piece:
    """The identity matrix, for diagonals."""
    from scorch.tensor.create import eye

    with untracked():
        made = eye(size, dtype=dtype, format="csr")
    assert isinstance(made, SparseTensor)
    return Piece(made.storage.values, made.storage.pattern)


# forward ---------------------------------------------------------------------------------------------


def _change(call: Call, arrays: Sequence[torch.Tensor], changes: Sequence[Any]) -> torch.Tensor | None:
    """How the result changes with the arrays."""
    pieces = {
        name: Piece(array, pattern)
        for name, array, pattern in zip(call.names, arrays, call.patterns, strict=True)
    }
    named: dict[str, str] = {}
    taken = {*call.names, *_index_names(call.text)}
    for name, change, pattern in zip(call.names, changes, call.patterns, strict=True):
        if change is not None:
            named[name] = _fresh(f"{name}_t", tuple(taken))
            taken.add(named[name])
            pieces[named[name]] = Piece(change, pattern)
    again = is_learning(*arrays, *(change for change in changes if change is not None))
    rule = tangent(call.assign, named, call.sizes(arrays), again)
    if rule is None:
        return None
    pieces.update(diagonals(rule, call, arrays, arrays[0].dtype))
    text = show(rule.statement)
    names = _tensors_of(text)
    asked: Any = call.format if call.pattern is None or call.format is not None else call.pattern.format
    found = _computed(text, names, [pieces[name] for name in names], asked, run_text(text, names, asked))
    if call.pattern is None or found.pattern is None:
        return found.array
    return placed(found.array, found.pattern, call.pattern)


# batches ---------------------------------------------------------------------------------------------


def _batched(
    call: Call, arrays: Sequence[torch.Tensor], in_dims: Sequence[int | None], size: int
) -> tuple[torch.Tensor, int | None]:
    """The statement with one more index: the last one of the batched operands and the result.

    The values of a batched sparse operand are one dense level more below its pattern.
    """
    if all(dim is None for dim in in_dims):
        return _computed(call.text, call.names, _pieces(call, arrays), call.format, call.run).array, None
    assign = call.assign
    index = _fresh("batch", (*call.names, *_index_names(call.text)))
    batched = {name for name, dim in zip(call.names, in_dims, strict=True) if dim is not None}
    pieces = []
    for array, pattern, dim in zip(arrays, call.patterns, in_dims, strict=True):
        if dim is None:
            pieces.append(Piece(array, pattern))
        elif pattern is None:
            pieces.append(Piece(array.movedim(dim, -1)))
        else:
            pieces.append(Piece(array.movedim(dim, -1).reshape(-1), _deeper(pattern, size)))
    target = Access(assign.target.tensor, (*assign.target.indices, index))
    text = show(Assign(target, _with_index(assign.value, batched, index)))
    asked = _batched_format(call, arrays, in_dims)
    found = _computed(text, call.names, pieces, asked, run_text(text, call.names, asked))
    if found.pattern is None:
        return found.array, found.array.dim() - 1
    outer = _shallower(found.pattern)
    call.pattern = outer
    return found.array.reshape(outer.size, size), 1


def _gradients_of_batch(call: Call, arrays: Sequence[torch.Tensor]) -> torch.Tensor:
    """The same for the batches of gradients of ``torch.autograd.grad(is_grads_batched=True)``."""
    torch._C._vmapmode_increment_nesting()
    level = torch._C._vmapmode_decrement_nesting()
    in_dims = [0 if is_legacy_batchedtensor(array) else None for array in arrays]
    plain = [
        array if dim is None else torch._remove_batch_dim(array, level, 1, 0)
        for array, dim in zip(arrays, in_dims, strict=True)
    ]
    size = next(array.shape[0] for array, dim in zip(plain, in_dims, strict=True) if dim is not None)
    found, dim = _batched(call, plain, in_dims, size)
    assert dim is not None
    return torch._add_batch_dim(found, dim, level)


def _pieces(call: Call, arrays: Sequence[torch.Tensor]) -> list[Piece]:
    return [Piece(array, pattern) for array, pattern in zip(arrays, call.patterns, strict=True)]


def _with_index(expr: Expr, batched: set[str], index: str) -> Expr:
    """``expr`` with one more index, the last one, of the tensors that are ``batched``."""
    used = [access for access in accesses(expr) if access.tensor in batched]
    return substitute(expr, {access: Access(access.tensor, (*access.indices, index)) for access in used})


def _deeper(pattern: Pattern, size: int) -> Pattern:
    return pattern.carried(_deeper_format(pattern.format), (*pattern.shape, size), len(pattern.format))


def _deeper_format(form: Format) -> Format:
    levels = (*form.levels, *Format("d").levels)
    return Format(levels, order=(*form.order, form.dims), blocks=dict(form.blocks))


def _shallower(pattern: Pattern) -> Pattern:
    form = pattern.format
    levels = len(form) - 1
    if form.levels[-1].name != "dense" or form.order[-1] != len(pattern.shape) - 1:
        raise UnsupportedError("vmap over this expression gives a sparse result that is not batched evenly")
    outer = Format(form.levels[:-1], order=form.order[:-1], blocks=dict(form.blocks))
    return Pattern(
        outer, pattern.shape[:-1], pattern.pos[:levels], pattern.crd[:levels], pattern.counts[:levels]
    )


def _batched_format(call: Call, arrays: Sequence[torch.Tensor], in_dims: Sequence[int | None]) -> Any:
    """The format of the result without the batch, with a dense level below."""
    form = call.format
    if form is None:  # it depends on patterns and shapes alone: zeros tell
        probe = replace(call, pattern=None)
        with untracked():
            _forward(probe, [_zeros(array, dim) for array, dim in zip(arrays, in_dims, strict=True)])
        form = "dense" if probe.pattern is None else probe.pattern.format
    found = as_format(form, len(call.assign.target.indices))
    return "dense" if found.is_dense else _deeper_format(found)


def _zeros(array: torch.Tensor, without: int | None) -> torch.Tensor:
    shape = list(array.shape)
    if without is not None:
        del shape[without]
    return torch.zeros(shape, dtype=array.dtype, device="cpu")
