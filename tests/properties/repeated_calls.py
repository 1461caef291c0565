# ruff: noqa: E501, N818
"""Random functions that are called again with other arguments, eagerly and compiled, beside dense ones in float64.

A function is a few lines of torch calls on sparse matrices ``A`` and ``B`` (m x k) and ``C`` (k x m), and dense
``X`` (k x n), ``Y`` (m x k), ``v`` (k) and ``w`` (m x 1). Between calls, arguments change as they do in programs:
values are written to, patterns, numbers of entries, shapes, dtypes, formats and strides become others, tensors
require gradients or do not, and one tensor takes the places of two; so do grad modes and the number of threads.
What one call has cached must never be taken for what another needs.

    python tests/properties/repeated_calls.py SEED            # one function
    python tests/properties/repeated_calls.py FIRST LAST      # many
"""

from __future__ import annotations

import contextlib
import random
import re
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import scorch
from validity import check_storage, coordinates_of

FORMATS = ["csr", "csr", "csr", "coo", "csc", "dcsr", "bsr(2,2)"]
ARGUMENTS = {"A": "mk", "B": "mk", "C": "km", "X": "kn", "Y": "mk", "v": "k", "w": "m1"}
SPARSE = "ABC"
UNARY = [
    "torch.relu({x})", "-{x}", "{x} * 2", "{x}.abs()", "torch.tanh({x})", "{x} * {x}", "{x} / 4", "torch.sin({x})",
    "{x}.clone()", "{x} + {x}", "torch.where({x} > 0, {x}, -{x})", "{x}.clamp(-1, 1)", "{x} + 1", "torch.sigmoid({x})",
    "torch.nn.functional.leaky_relu({x})", "torch.square({x}) - {x}", "{x}.contiguous()", "{x}.view_as({x})",
    "{x}.double().to({x}.dtype)", "stored({x}, 'csr')", "stored({x}, 'csc')", "stored({x}, 'coo')", "dense({x})",
    "{x} ** 2", "{x}.pow(3) / 8", "{x}.sign() * {x}", "({x} > 0) * {x}", "({x} != 0).to({x}.dtype)", "{x}.clone().mul_(2)",
    "{x}.clone().add_({x})", "{x}.masked_fill({x} < 0, 0.5)", "{x}.detach() * {x}", "torch.zeros_like({x}) + {x}",
    "{x}.clone().masked_fill_({x} > 0.5, 0)", "torch.nn.functional.dropout({x}, 0.0)", "{x}.expand_as({x})", "{x}.exp() - 1",
    "torch.stack([{x}, {x} * 2]).sum(0)", "torch.stack([{x}, -{x}])[1]", "torch.log1p({x}.abs())", "torch.minimum({x}, 0 * {x})",
]  # fmt: skip
MATRIX = [
    ("{x}.T", "ba"), ("{x}.sum(0)", "b"), ("{x}.sum(1)", "a"), ("{x}.sum(1, keepdim=True)", "a1"), ("{x}.mean(1)", "a"),
    ("{x}.amax(1)", "a"), ("{x}[0]", "b"), ("{x}[:, 0]", "a"), ("{x}[1:]", "?b"), ("{x}[:, :-1]", "a?"),
    ("{x}.transpose(0, 1)", "ba"), ("torch.softmax({x}, 1)", "ab"), ("{x}[[1, 0]]", "?b"), ("{x}.flip(0)", "ab"),
    ("torch.einsum('ij,ij->i', {x}, {x})", "a"), ("torch.einsum('ij,kj->ik', {x}, {x})", "aa"), ("{x} @ {x}.T", "aa"),
    ("torch.cat([{x}, {x} * 2], 1)", "a?"), ("torch.cat([{x}, -{x}])", "?b"), ("{x}.reshape(-1)", "?"),
    ("{x}.unsqueeze(0).sum(0)", "ab"), ("torch.linalg.vector_norm({x} + 0.1, dim=1)", "a"), ("{x}.T.T", "ab"),
    ("{x}.narrow(0, 0, 1)", "?b"), ("{x}.index_select(1, torch.tensor([0, 1]))", "a?"), ("{x}.mT @ {x}", "bb"),
    ("torch.triu({x})", "ab"), ("{x}.cumsum(1)", "ab"), ("{x}.mean()", ""), ("{x}.sum()", ""),
    ("torch.log_softmax({x}, 0)", "ab"), ("{x}.logsumexp(1)", "a"), ("{x}.amin(0)", "b"), ("{x}.var(1)", "a"),
    ("{x}.prod(0)", "b"), ("{x}.count_nonzero(0).to({x}.dtype)", "b"), ("{x}.repeat(2, 1)", "?b"), ("{x}.tril(-1)", "ab"),
    ("torch.roll({x}, 1, 0)", "ab"), ("{x}[1:] - {x}[:-1]", "?b"), ("{x}[:, None].sum(1)", "ab"), ("{x}.diagonal()", "?"),
    ("einsum('ij,kj->ik', {x}, {x})", "aa"), ("einsum('ij->ji', {x})", "ba"), ("einsum('ij,ij->', {x}, {x})", ""),
    ("einsum('ij,kj,kl->il', {x}, {x}, {x})", "ab"), ("({x} @ {x}.T) * ({x} @ {x}.T)", "aa"), ("{x}.max()", ""),
    ("{x} * ({x} @ {x}.T @ dense({x}))", "ab"), ("torch.stack([{x}, {x}]).transpose(0, 1).sum(1)", "ab"),
    ("(torch.stack([{x}, {x} * 2]) @ dense({x}).T).sum(0)", "aa"), ("torch.nn.functional.normalize({x} + 0.1, dim=1)", "ab"),
    ("torch.kron({x}, {x})", "??"), ("torch.outer({x}[0], {x}[:, 0])", "ba"), ("torch.addmm({x}, {x} @ {x}.T, {x})", "ab"),
]  # fmt: skip


@dataclass
class Value:
    """A name in a function, with its shape as letters; "?" is a size that no other has."""

    name: str
    shape: str


@dataclass
class Function:
    """Its lines, its results, and the arguments that it reads."""

    lines: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    @property
    def reads(self) -> list[str]:
        """The arguments that it reads, the sparse ones more than once."""
        words = set(re.findall(r"\w+", " ".join(self.lines)))
        return [name for name in (*SPARSE, *SPARSE, *ARGUMENTS) if name in words]

    @property
    def source(self) -> str:
        body = "".join(f"    {line}\n" for line in self.lines)
        return f"def f({', '.join(ARGUMENTS)}):\n{body}    return {', '.join(self.results)},\n"

    def build(self, names: dict[str, Any]) -> Callable[..., Any]:
        scope: dict[str, Any] = {"torch": torch, **names}
        exec(self.source, scope)
        return scope["f"]  # type: ignore[no-any-return]


def draw_line(rng: random.Random, values: list[Value]) -> tuple[str, str] | None:
    stored = [one for one in values if one.name in SPARSE]
    x = rng.choice(rng.choice([stored, values[-3:] if len(values) > len(ARGUMENTS) else stored, values]))
    kind = rng.random()
    if kind < 0.25 or not x.shape:
        return rng.choice(UNARY).format(x=x.name), x.shape
    if kind < 0.45 and len(x.shape) == 2 and "1" not in x.shape:
        text, shape = rng.choice(MATRIX)
        return text.format(x=x.name), shape.replace("a", "\0").replace("b", x.shape[1]).replace(
            "\0", x.shape[0]
        )
    others = [one for one in values if one.shape == x.shape and "?" not in x.shape]
    if kind < 0.65 and others:
        y = rng.choice(others)
        sign = rng.choice(["+", "-", "*", "*", "max", "lerp", "cat", "addcmul"])
        if sign == "max":
            return f"torch.maximum({x.name}, {y.name})", x.shape
        if sign == "lerp":
            return f"torch.lerp({x.name}, {y.name}, 0.25)", x.shape
        if sign == "addcmul":
            return f"torch.addcmul({x.name}, {y.name}, {x.name}, value=0.5)", x.shape
        if sign == "cat":
            return f"torch.cat([{x.name}, {y.name}])", "?" + x.shape[1:]
        return f"{x.name} {sign} {y.name}", x.shape
    if kind < 0.75 and len(x.shape) == 2 and "?" not in x.shape:
        a, b = x.shape
        others = [one for one in values if one.shape in (b, "1" + b, a + "1")]
        if others:
            y = rng.choice(others)
            text = [
                f"{x.name} {rng.choice('*+-')} {y.name}",
                f"{y.name} * {x.name}",
                f"{x.name} / ({y.name}.abs() + 1)",
            ]
            return rng.choice(text), x.shape
    if len(x.shape) == 2 and "1" not in x.shape and "?" not in x.shape:
        a, b = x.shape
        y = rng.choice(
            [one for one in values if one.shape in (b, f"{b}n", f"{b}m", f"{b}k", f"n{b}", f"m{b}")] or [x]
        )
        if y.shape == b:
            return rng.choice([f"{x.name} @ {y.name}", f"torch.mv({x.name}, {y.name})"]), a
        if len(y.shape) == 2 and y.shape[0] == b and y.shape[1] not in "1?":
            text = [f"{x.name} @ {y.name}", f"torch.mm({x.name}, {y.name})"]
            text += [f"torch.einsum('ij,jk->ik', {x.name}, {y.name})"]
            return rng.choice(text), a + y.shape[1]
        if len(y.shape) == 2 and y.shape[1] == b and y.shape[0] not in "1?":
            text = [f"torch.nn.functional.linear({x.name}, {y.name})", f"{x.name} @ {y.name}.T"]
            return rng.choice(text), a + y.shape[0]
    return None


def draw_function(rng: random.Random) -> Function:
    values = [Value(name, shape) for name, shape in ARGUMENTS.items()]
    found = Function()
    count = rng.randint(1, 6)
    while len(found.lines) < count:
        line = draw_line(rng, values)
        if line is not None:
            name = f"t{len(found.lines)}"
            found.lines.append(f"{name} = {line[0]}")
            values.append(Value(name, line[1]))
    made = [f"t{number}" for number in range(count)]
    found.results = list(dict.fromkeys([made[-1], *rng.sample(made, rng.randint(0, 1))]))
    return found


# arguments --------------------------------------------------------------------------------------------


class Arguments:
    """The arguments of a function, sparse and dense side by side, and how they are called next."""

    def __init__(self, rng: random.Random, names: list[str]) -> None:
        self.rng, self.names = rng, names
        self.sizes = {"1": 1}
        self.dtype, self.mode, self.threads = torch.float32, "grad", 1
        self.tensors: dict[str, torch.Tensor] = {}
        self.log: list[str] = []
        self.resize()

    def resize(self) -> None:
        sizes = [40, 97, 130] if self.rng.random() < 0.1 else [2, 3, 4, 6, 9]
        self.sizes.update({letter: self.rng.choice(sizes) for letter in "mkn"})
        for name in ARGUMENTS:
            self.renew(name)
        self.log.append(f"sizes {self.sizes}, {self.dtype}")

    def values(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Small multiples of 1/8 other than zero, so that products of few are exact in float32."""
        drawn = [
            self.rng.choice([-1, 1]) * self.rng.randint(1, 16) / 8
            for _ in range(max(1, torch.Size(shape).numel()))
        ]
        return torch.tensor(drawn[: torch.Size(shape).numel()], dtype=self.dtype).reshape(shape)

    def renew(self, name: str, density: float | None = None, form: Any = None) -> None:
        shape = tuple(self.sizes[letter] for letter in ARGUMENTS[name])
        made = self.values(shape)
        if name in SPARSE:
            density = self.rng.choice([0.2, 0.4, 0.7]) if density is None else density
            made = made * torch.tensor([self.rng.random() < density for _ in range(made.numel())]).reshape(
                shape
            )
            form = form or self.rng.choice(FORMATS)
            if str(form).startswith("bsr") and (shape[0] % 2 or shape[1] % 2):
                form = "csr"
            made = scorch.from_torch(made, format=form)
        elif made.dim() == 2 and self.rng.random() < 0.3:
            made = made.T.contiguous().T
        elif self.rng.random() < 0.1:
            made = torch.stack([made, made], -1)[..., 0]
        self.tensors[name] = made.requires_grad_(self.rng.random() < 0.4)

    def permutation(self, size: int) -> list[int]:
        return self.rng.sample(range(size), size)

    def change(self) -> None:
        """Change one or two things about the next call."""
        for _ in range(self.rng.randint(0, 3)):
            kind = self.rng.choice(CHANGES)
            name = self.rng.choice(self.names)
            tensor = self.tensors[name]
            self.log.append(f"{kind} {name}")
            if kind == "values":
                with torch.no_grad():
                    tensor.mul_(self.rng.choice([-1.0, 0.5]))
            elif kind == "copied":
                with torch.no_grad():
                    tensor.copy_(tensor.detach().clone() * -1)
            elif kind == "stored":
                if name in SPARSE:
                    with torch.no_grad():
                        tensor.values().mul_(-0.5) if not tensor.requires_grad else tensor.data.values().mul_(
                            -0.5
                        )
            elif kind == "assigned":
                if not tensor.requires_grad:
                    tensor[0] = 0.5
            elif kind == "pattern":
                self.renew(name, form=tensor.format if name in SPARSE else None)
            elif kind == "places":  # as many entries, at other places of the memory that is freed
                learns, form, made = (
                    tensor.requires_grad,
                    getattr(tensor, "format", None),
                    plain(tensor.detach()),
                )
                made = made.flatten()[self.permutation(made.numel())].reshape(made.shape)
                self.tensors[name] = tensor = torch.zeros(())
                made = made if form is None else scorch.from_torch(made, format=form)
                self.tensors[name] = made.requires_grad_(learns)
            elif kind == "empty":
                self.renew(name, 0.0)
            elif kind == "full":
                self.renew(name, 1.0)
            elif kind == "format":
                self.renew(name)
            elif kind == "shapes":
                self.resize()
            elif kind == "dtype":
                self.dtype = torch.float64 if self.dtype == torch.float32 else torch.float32
                for one in ARGUMENTS:
                    self.renew(one)
            elif kind == "gradient":
                self.tensors[name] = tensor.detach().clone().requires_grad_(not tensor.requires_grad)
            elif kind == "same":
                self.tensors["A"] = self.tensors["B"]
            elif kind == "shared":  # one pattern, other values
                self.tensors["A"] = (self.tensors["B"].detach() * -0.5).requires_grad_(
                    self.rng.random() < 0.5
                )
            elif kind == "view":
                self.tensors["C"] = self.tensors["A"].detach().T
            elif kind == "mode":
                self.mode = self.rng.choice(["grad", "grad", "no_grad", "inference"])
            elif kind == "threads":
                self.threads = 3 - self.threads
            elif kind == "forgotten":
                scorch.clear_plans()

    def dense(self) -> dict[str, torch.Tensor]:
        """Dense copies in float64; one for each tensor, however often it is passed."""
        copies: dict[int, torch.Tensor] = {}
        for tensor in self.tensors.values():
            if id(tensor) not in copies:
                plain = tensor.detach()
                plain = plain.to_dense() if isinstance(plain, scorch.SparseTensor) else plain.clone()
                copies[id(tensor)] = plain.double().requires_grad_(tensor.requires_grad)
        return {name: copies[id(tensor)] for name, tensor in self.tensors.items()}


CHANGES = [
    "values", "values", "copied", "stored", "assigned", "pattern", "places", "places", "places", "places", "places", "empty", "full", "format", "shapes",
    "dtype", "gradient", "gradient", "same", "shared", "view", "mode", "mode", "threads", "forgotten",
]  # fmt: skip
MODES: dict[str, Callable[[], Any]] = {
    "grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def stored(x: Any, form: str) -> Any:
    return x.to_format(form) if isinstance(x, scorch.SparseTensor) and x.dim() == 2 else x


def plain(x: Any) -> Any:
    return x.to_dense() if isinstance(x, scorch.SparseTensor) else x


SPARSE_NAMES = {"einsum": scorch.einsum, "stored": stored, "dense": lambda x: plain(x.clone())}
DENSE_NAMES = {"einsum": torch.einsum, "stored": lambda x, form: x, "dense": torch.clone}


# runs -------------------------------------------------------------------------------------------------


class Wrong(AssertionError):
    """A call that is not what it is on dense tensors."""


def compare(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype, what: str) -> None:
    if isinstance(found, scorch.SparseTensor):
        check_storage(found)
    limit = 1e-8 if dtype == torch.float64 else 3e-4
    values = plain(found.detach())
    if values.dtype != dtype or values.shape != wanted.shape:
        raise Wrong(f"{what}: {values.dtype} {tuple(values.shape)} instead of {dtype} {tuple(wanted.shape)}")
    scale = float(wanted.detach().abs().max()) if wanted.numel() else 0.0
    if not torch.allclose(
        values.double(), wanted.detach(), rtol=limit, atol=limit * max(1.0, scale), equal_nan=True
    ):
        raise Wrong(f"{what}:\n{values}\ninstead of\n{wanted.detach()}")


def gradients(results: list[torch.Tensor], leaves: list[torch.Tensor]) -> list[torch.Tensor | None] | None:
    """The gradients of a sum over all results; None if there is none."""
    learned = [plain(one) for one in results if one.requires_grad]
    if not learned or not leaves:
        return None
    factors = [
        torch.arange(1, one.numel() + 1).reshape(one.shape).remainder(3).to(one.dtype) for one in learned
    ]
    total = sum(((one * factor).sum() for one, factor in zip(learned, factors, strict=True)), torch.zeros(()))
    return list(torch.autograd.grad(total, leaves, allow_unused=True))


def places(tensor: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(tensor.shape, dtype=torch.bool)
    crd = coordinates_of(tensor.storage)  # type: ignore[attr-defined]
    mask[tuple(crd)] = True
    return mask


def call_once(run: Callable[..., Any], dense_run: Callable[..., Any], given: Arguments, what: str) -> str:
    """Compare a call with that of dense tensors, and the gradients; return how far that went."""
    dense_given = given.dense()
    with warnings.catch_warnings(), MODES[given.mode]():
        warnings.simplefilter("ignore")
        try:
            wanted = list(dense_run(*dense_given.values()))
        except (RuntimeError, IndexError):
            return "refused by both"
        found = list(run(*given.tensors.values()))
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        compare(one, other, given.dtype, f"result {number} of {what}")
        if given.mode == "grad" and one.requires_grad != other.requires_grad:
            raise Wrong(f"result {number} of {what}: requires_grad is {one.requires_grad}")
    if given.mode != "grad":
        return "results"
    names = [name for name, tensor in given.tensors.items() if tensor.requires_grad and tensor.is_leaf]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        truths = gradients(wanted, [dense_given[name] for name in names])
        grads = gradients(found, [given.tensors[name] for name in names])
    if (truths is None) != (grads is None):
        raise Wrong(f"{what}: gradients are {grads} instead of {truths}")
    if grads is None or truths is None:
        return "results"
    for name, grad, truth in zip(names, grads, truths, strict=True):
        if truth is None or grad is None:
            if grad is not None and bool(plain(grad).any()):
                raise Wrong(f"the gradient of {name} of {what} is {grad} instead of {truth}")
            if truth is not None and bool(
                (truth * places(given.tensors[name]) if name in SPARSE else truth).any()
            ):
                raise Wrong(f"there is no gradient of {name} of {what}: {truth}")
            continue
        mask = places(given.tensors[name]) if name in SPARSE else torch.ones(truth.shape, dtype=torch.bool)
        compare(plain(grad) * mask, truth * mask, given.dtype, f"the gradient of {name} of {what}")
    return "gradients"


def run_function(seed: int, calls: int = 5) -> Counter[str]:
    """Draw a function, and call it ``calls`` times, eagerly and compiled."""
    rng = random.Random(seed)
    function = draw_function(rng)
    given = Arguments(rng, function.reads)
    run, dense_run = function.build(SPARSE_NAMES), function.build(DENSE_NAMES)
    compiled = scorch.compile(run)
    threads, counts = torch.get_num_threads(), Counter[str]()
    try:
        for number in range(calls):
            torch.set_num_threads(given.threads)
            for kind, one in rng.sample([("eager", run), ("compiled", compiled)], 2):
                for _ in range(rng.randint(1, 2)):
                    counts[call_once(one, dense_run, given, f"call {number}, {kind}")] += 1
            given.change()
            given.log.append(f"--- {number + 1} ({given.mode})")
    except Exception as error:
        error.add_note(f"seed {seed}\n{function.source}\n" + "\n".join(given.log))
        formats = {
            name: str(getattr(t, "format", t.stride())) + " grad" * t.requires_grad
            for name, t in given.tensors.items()
        }
        error.add_note(f"{given.dtype} {given.mode} {formats}")
        raise
    finally:
        torch.set_num_threads(threads)
    return counts


if __name__ == "__main__":
    first, last = int(sys.argv[1]), int(sys.argv[-1]) + 1
    failed, counts = Counter[str](), Counter[str]()
    for seed in range(first, last):
        try:
            counts += run_function(seed)
        except Exception as error:
            failed[type(error).__name__] += 1
            if len(sys.argv) == 2:
                traceback.print_exc()
            else:
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                print("SEED", seed, type(error).__name__, " | ".join(lines[:6])[:300], flush=True)
    print(f"{last - first} functions, wrong: {dict(failed)}; {dict(counts)}")
