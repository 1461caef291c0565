"""Random programs of views and writes, run on a sparse and on a dense tensor side by side.

After each step every live tensor is compared, and a step that one of both refuses the other must refuse too.
At the end the gradients of all leaves are compared; that of a sparse leaf at its entries.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import torch

import scorch

FORMATS = {
    1: ["s", "o"],
    2: ["csr", "csc", "coo", "dcsr", "sd", "bsr(2,2)"],
    3: ["sss", "ooo", "dss", "dds"],
}
SHAPES = [(4,), (6,), (3, 3), (3, 4), (4, 2), (1, 4), (2, 3, 2), (2, 2, 3)]
MODES = ["plain", "plain", "grad", "grad", "grad", "source", "leaf"]

Call = Callable[[Any], Any]


class Refused:
    """What was raised instead of a result."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"{type(self.error).__name__}: {str(self.error)[:200]}"


def attempt(call: Callable[..., Any], *args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call(*args)
        except Exception as error:
            return Refused(error)


def as_dense(tensor: Any) -> torch.Tensor:
    return tensor.to_dense() if isinstance(tensor, scorch.SparseTensor) else tensor


def stored(tensor: scorch.SparseTensor) -> torch.Tensor:
    """1 where a tensor has an entry, also one that is zero."""
    storage = tensor.storage
    ones = storage.values.detach().clone().fill_(1.0)
    return scorch.SparseTensor(type(storage)(storage.pattern, ones)).to_dense()


class Program:
    """A program of a few steps, all drawn from ``seed``."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.mode = self.rng.choice(MODES)
        self.log: list[str] = []
        shape = self.rng.choice(SHAPES)
        self.format = self.rng.choice(FORMATS[len(shape)])
        self.start = self.numbers(shape, 0.5)
        sparse, dense = scorch.from_torch(self.start, format=self.format), self.start.clone()
        self.leaves = [(sparse, dense)]
        if self.mode in ("grad", "leaf"):
            sparse.requires_grad_()
            dense.requires_grad_()
        if self.mode == "grad":
            sparse, dense = sparse * 1, dense * 1
        elif self.mode in ("plain", "source"):
            sparse, dense = sparse.clone(), dense.clone()
        self.live = [(sparse, dense)]
        self.terms: list[tuple[Any, Any]] = []
        self.say(f"{self.mode} {tuple(shape)} {self.format} {self.start.tolist()}")

    def say(self, text: str) -> None:
        self.log.append(text)

    def numbers(self, shape: tuple[int, ...], zeros: float = 0.3) -> torch.Tensor:
        count = torch.Size(shape).numel()
        flat = [0.0 if self.rng.random() < zeros else self.rng.randint(-6, 6) / 2 for _ in range(count)]
        return torch.tensor(flat, dtype=torch.float64).reshape(shape)

    # drawing -----------------------------------------------------------------------------------------

    def view(self, shape: tuple[int, ...]) -> tuple[str, Call]:
        """A view of a tensor of ``shape``."""
        rng, rank = self.rng, len(shape)
        dim = rng.randrange(rank)
        size = shape[dim]
        start = rng.randint(0, size)
        stop, step = rng.randint(start, size), rng.randint(1, 2)
        other = rng.randrange(rank)
        order = rng.sample(range(rank), rank)
        place = rng.randrange(size) if size else 0
        part = tuple(
            rng.choice([slice(None), slice(0, max(n - 1, 0)), slice(None, None, 2), slice(1, None)])
            for n in shape
        )
        wide = tuple(3 if n == 1 else n for n in shape)
        choices: list[tuple[str, Call]] = [
            (
                f"slice {dim} {start}:{stop}:{step}",
                lambda t: t[(slice(None),) * dim + (slice(start, stop, step),)],
            ),
            (f"narrow {dim} {start}", lambda t: t.narrow(dim, start, stop - start)),
            (f"transpose {dim} {other}", lambda t: t.transpose(dim, other)),
            (f"swapaxes {dim} {other}", lambda t: torch.swapaxes(t, dim, other)),
            (f"movedim {dim} {other}", lambda t: t.movedim(dim, other)),
            (f"permute {order}", lambda t: t.permute(order)),
            ("flatten", lambda t: t.flatten()),
            ("reshape", lambda t: t.reshape(-1)),
            (f"unsqueeze {dim}", lambda t: t.unsqueeze(dim)),
            (f"squeeze {dim}", lambda t: t.squeeze(dim) if t.dim() > 1 else t[:]),
            ("all", lambda t: t[:]),
            ("dots", lambda t: t[..., None]),
            (f"key {part}", lambda t: t[part]),
            ("view as", lambda t: t.view_as(t)),
            ("detach", lambda t: t.detach()),
            (f"expand {wide}", lambda t: t.expand(wide)),
            (f"expand more {wide}", lambda t: torch.broadcast_to(t, (2, *wide))),
            (f"chunk {dim}", lambda t: t.chunk(2, dim)[0]),
            (f"split {dim}", lambda t: t.split(2, dim)[-1]),
            (f"tensor_split {dim}", lambda t: torch.tensor_split(t, 2, dim)[1]),
            (f"unflatten {dim}", lambda t: t.unflatten(dim, (1, -1)) if size else t[:]),
        ]
        if rank > 1:
            choices += [
                (f"select {dim} {place}", lambda t: t.select(dim, place)),
                (f"item {place}", lambda t: t[place if place < shape[0] else 0]),
                (f"unbind {dim}", lambda t: t.unbind(dim)[0]),
                ("diagonal", lambda t: t.diagonal(0, 0, 1)),
                ("diagonal 1", lambda t: torch.diagonal(t, 1, 0, 1)),
                ("mT", lambda t: t.mT),
                ("mixed", lambda t: t[-1, 0:]),
                ("none", lambda t: t[None, 0]),
            ]
        return rng.choice(choices)

    def source(self, shape: tuple[int, ...], kinds: str) -> tuple[Any, Any]:
        """A number, or a dense or sparse tensor that is broadcast to ``shape``, once for each program."""
        rng = self.rng
        kind = rng.choice(kinds)
        if kind == "n":
            number = rng.randint(-4, 4) / 2
            return number, number
        if kind in "d0":
            cut = len(shape) if kind == "0" else rng.choice([0, 0, 0, len(shape) - 1])
            sparse = self.numbers(shape[cut:])
            dense = sparse.clone()
        else:
            dense = self.numbers(shape, 0.5)
            sparse = scorch.from_torch(dense, format=rng.choice(FORMATS[len(shape)]))
        if self.mode != "plain" and rng.random() < 0.5:
            sparse.requires_grad_()
            dense.requires_grad_()
            self.leaves.append((sparse, dense))
        return sparse, dense

    def write(self, shape: tuple[int, ...]) -> tuple[str, Callable[[Any, Any], Any], tuple[Any, Any]]:
        """A function in place, and what it takes."""
        rng, rank = self.rng, len(shape)
        dim = rng.randrange(rank)
        size = shape[dim]
        places = torch.tensor([rng.randrange(size) for _ in range(2)] if size else [], dtype=torch.int64)
        once = places.unique()
        mask = self.numbers(shape) > 0
        sparse_mask = scorch.from_torch(mask, format=rng.choice(FORMATS[rank])) if rank in FORMATS else mask
        row = shape[1:]
        cut = (*shape[:dim], once.numel(), *shape[dim + 1 :])
        name, kinds, form, call = rng.choice(
            [
                ("mul_", "nddss0", shape, lambda t, x: t.mul_(x)),
                ("imul", "nd", shape, lambda t, x: t.__imul__(x)),
                ("add_", "nddss0", shape, lambda t, x: t.add_(x)),
                ("sub_", "nddss", shape, lambda t, x: t.sub_(x, alpha=2)),
                ("div_", "n", shape, lambda t, x: t.div_(x or 1.0)),
                ("fill_", "n0", shape, lambda t, x: t.fill_(x)),
                ("zero_", "n", shape, lambda t, x: t.zero_()),
                ("copy_", "ddss0", shape, lambda t, x: t.copy_(x)),
                ("clamp_", "n", shape, lambda t, x: t.clamp_(-1.0, 1.0)),
                ("clamp_ above", "n", shape, lambda t, x: t.clamp_(min=0.5)),
                ("relu_", "n", shape, lambda t, x: t.relu_()),
                ("exp_", "n", shape, lambda t, x: t.clamp_(max=1.0).exp_()),
                ("neg_", "n", shape, lambda t, x: t.neg_()),
                ("square_", "n", shape, lambda t, x: torch.square_(t)),
                ("lerp_", "d", shape, lambda t, x: t.lerp_(x.expand(t.shape), 0.5)),
                ("addcmul_", "d", shape, lambda t, x: t.addcmul_(x, x)),
                ("tril_", "n", shape, lambda t, x: t.tril_() if t.dim() > 1 else t.mul_(2)),
                ("masked_fill_", "n0", shape, lambda t, x: t.masked_fill_(mask, x)),
                ("index_fill_", "n0", shape, lambda t, x: t.index_fill_(dim, once, x)),
                ("index_copy_", "d", cut, lambda t, x: t.index_copy_(dim, once, x.expand(cut))),
                ("index_add_", "d", cut, lambda t, x: t.index_add_(dim, once, x.expand(cut))),
                (
                    "index_put_",
                    "nd0",
                    (),
                    lambda t, x: t.index_put_((once,), torch.as_tensor(x, dtype=t.dtype)),
                ),
                ("set mask", "n0", shape, lambda t, x: t.__setitem__(mask, x)),
                ("set sparse mask", "n0", shape, None),
                ("set item", "nd0", row, lambda t, x: t.__setitem__(0, x)),
                ("set last", "nd0", shape[:-1], lambda t, x: t.__setitem__((..., -1), x)),
                ("set slice", "nd0", row, lambda t, x: t.__setitem__(slice(0, 2), x)),
                ("set all", "nds0", shape, lambda t, x: t.__setitem__(slice(None), x)),
                ("set element", "n0", shape, lambda t, x: t.__setitem__((0,) * t.dim(), x)),
                ("set list", "n0", shape, lambda t, x: t.__setitem__([0], x)),
                ("set by index", "nd0", row, lambda t, x: t.__setitem__(once, x)),
            ]
        )
        if name == "set sparse mask":
            call = lambda t, x: t.__setitem__(  # noqa: E731
                sparse_mask if isinstance(t, scorch.SparseTensor) else mask, x
            )
        given = self.source(form, kinds)
        return f"{name} {form} {_shown(given[1])}", call, given

    # running -----------------------------------------------------------------------------------------

    def step(self) -> None:
        place = self.rng.randrange(len(self.live))
        if self.rng.random() < 0.4:
            place = 0
        sparse, dense = self.live[place]
        is_tracked = self.rng.random() < 0.85
        about = "" if is_tracked else "no_grad "
        with torch.set_grad_enabled(is_tracked):
            if self.rng.random() < 0.5:
                name, view = self.view(tuple(dense.shape))
                self.say(f"{len(self.live)} = {about}{name} of {place}")
                found = self.compare(attempt(view, sparse), attempt(view, dense))
                if found is not None and isinstance(found[0], scorch.SparseTensor):
                    self.live.append(found)
            else:
                name, write, given = self.write(tuple(dense.shape))
                self.say(f"{about}{name} on {place}")
                self.compare(attempt(write, sparse, given[0]), attempt(write, dense, given[1]), is_write=True)
        self.check()

    def compare(self, mine: Any, theirs: Any, is_write: bool = False) -> tuple[Any, Any] | None:
        if isinstance(mine, Refused) != isinstance(theirs, Refused):
            if isinstance(mine, Refused) and "share memory is not differentiable" in str(mine.error):
                raise StopError  # torch refuses backward() instead
            if isinstance(theirs, Refused) and "view size is not compatible" in str(theirs.error):
                raise StopError  # a sparse tensor has no strides
            raise AssertionError(f"sparse {mine!r}, dense {theirs!r}\n{self}")
        if isinstance(mine, Refused):
            self.say(f"   refused: {theirs!r}")
            kind = next(kind for kind in type(theirs.error).__mro__ if kind.__module__ == "builtins")
            assert isinstance(mine.error, kind), f"sparse {mine!r}, dense {theirs!r}\n{self}"
            return None
        return mine, theirs

    def check(self) -> None:
        for place, (sparse, dense) in enumerate(self.live):
            with torch.no_grad():
                shown = as_dense(sparse)
            same = torch.allclose(shown, dense.detach(), atol=1e-9)
            assert same, f"{place} is {shown}, should be {dense}\n{self}"

    def finish(self) -> None:
        """Compare gradients of everything that is alive."""
        losses, refused = [], (set(), set())
        for kind in range(2):
            loss: Any = 0.0
            for place, pair in enumerate(self.live):
                tensor = pair[kind]
                weight = torch.arange(1.0, tensor.numel() + 1, dtype=torch.float64).reshape(tensor.shape)
                used = attempt(lambda t, w: (t * w).sum() + (t * t).sum(), tensor, weight)
                if isinstance(used, Refused):
                    refused[kind].add(place)
                else:
                    loss = loss + used
            losses.append(loss)
        assert refused[0] == refused[1], f"sparse refuses to use {refused[0]}, dense {refused[1]}\n{self}"
        if not isinstance(losses[1], torch.Tensor) or not losses[1].requires_grad:
            return
        theirs = attempt(losses[1].backward)
        mine = attempt(losses[0].backward)
        if isinstance(theirs, Refused):
            return
        assert not isinstance(mine, Refused), f"{mine!r}\n{self}"
        for sparse, dense in self.leaves:
            if not dense.requires_grad:
                continue
            is_sparse = isinstance(sparse, scorch.SparseTensor)
            wanted = torch.zeros_like(dense) if dense.grad is None else dense.grad
            if is_sparse:
                wanted = wanted * stored(sparse)
            found = torch.zeros_like(dense) if sparse.grad is None else as_dense(sparse.grad)
            same = torch.allclose(found, wanted, atol=1e-9)
            assert same, f"gradient {found}, should be {wanted} of {dense}\n{self}"

    def run(self) -> None:
        try:
            for _ in range(self.rng.randint(3, 8)):
                self.step()
            self.finish()
        except StopError:
            pass

    def __repr__(self) -> str:
        return "\n".join(self.log)


class StopError(Exception):
    """The rest of a program has no meaning."""


def _shown(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return str(value)
    return f"{'learned ' if value.requires_grad else ''}{value.tolist()}"
