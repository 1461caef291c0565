# ruff: noqa: E501, N818
"""Random programs of torch calls, run on sparse tensors and on dense ones side by side.

A program is a list of lines (``program_steps``). After every line each tensor of the program is compared with its
dense twin: shape, dtype, values, whether it requires a gradient, its gradient, and what its format promises. What
dense tensors refuse, sparse ones must refuse with the same type of error. A program that fails is made shorter
by leaving out lines, and printed as a script that runs by itself:

    python tests/properties/programs.py SEED            # one program
    python tests/properties/programs.py FIRST LAST      # many: what fails, and how often calls were refused
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import scorch
from properties.program_steps import FAMILIES, FORMATS, SHAPES, Draw, Live, is_lost
from scorch.errors import ScorchError
from validity import check_storage, coordinates_of, dense_of

MOST_ELEMENTS = 400
MOST_LIVE = 7
LARGE = 1e4  # numbers beyond are not computed with any more: rounding would hide what is wrong
TOLERANCE = {torch.bfloat16: 5e-2, torch.float16: 1e-2, torch.float32: 2e-4, torch.complex64: 2e-4}

# What sparse tensors refuse although dense ones do not, by a part of the message; the reason stands in the guide.
REFUSED = {
    "backward through the graph a second time": "gradients of sparse tensors keep more, which backward() frees",
    "or on a tensor that has views, while gradients are tracked": "t_ and its like with gradients",
    "whose elements share memory is not differentiable": "writes to expanded views with gradients",
    "or that requires a gradient of its own, is used after": "a leaf that is a view of what was written to",
    "was reshaped in place (squeeze_, t_ ...) after the view": "a write with gradients to a view of what t_ changed",
    "would make a sparse tensor dense": "a tensor without dimensions has no sparse format",
}

# What dense tensors lack for a dtype, and sparse ones may have.
LACKING = ("not implemented for", "not supported for", "not supported with", "does not support")


COMPARISON = re.compile(r" ([=!<>]=|<|>) ")
STRIDES = "view size is not compatible"


class Wrong(AssertionError):
    """A sparse tensor that is not what the dense one is."""


@dataclass
class Run:
    """The state of a program: both environments, and how its calls went."""

    sparse: dict[str, Any] = field(default_factory=dict)
    dense: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    limits: dict[str, float] = field(default_factory=dict)  # by name, how far a tensor may be off
    is_dropped: bool = False  # whether torch has just lost a gradient
    apart: set[str] = field(default_factory=set)  # names of what may lie in memory otherwise
    stored: dict[str, torch.Tensor] = field(
        default_factory=dict
    )  # where leaves have stored entries all along

    def __post_init__(self) -> None:
        self.sparse |= {
            "torch": torch,
            "sp": lambda x, form: scorch.from_torch(x, format=form),
            "cv": converted,
            "dn": lambda x: x.to_dense() if isinstance(x, scorch.SparseTensor) else x.clone(),
            "view": as_view,
            "grad": self.sparse_gradient,
        }
        self.dense |= {
            "torch": torch,
            "sp": lambda x, form: x,
            "cv": lambda x, form: x.clone(memory_format=torch.contiguous_format),
            "dn": lambda x: x.clone(memory_format=torch.contiguous_format),
            "view": as_view,
            "grad": self.dense_gradient,
        }

    def sparse_gradient(self, total: Any, leaf: Any, name: str) -> Any:
        (found,) = torch.autograd.grad(total, leaf, retain_graph=True, allow_unused=True)
        if found is None:
            return torch.zeros(())
        mask = self.stored.get(name)
        is_same = mask is None or torch.equal(mask, places_of(found))
        return found if is_same or mask is None else found * mask.to(found.dtype)

    def dense_gradient(self, total: Any, leaf: Any, name: str) -> Any:
        (found,) = torch.autograd.grad(total, leaf, retain_graph=True, allow_unused=True)
        self.is_dropped = found is None and leaf._is_view()
        return torch.zeros(()) if found is None else masked(found, self.stored.get(name))

    # one line ----------------------------------------------------------------------------------------

    def step(self, line: str) -> bool:
        """Run a line in both environments and compare everything; whether the program can go on."""
        before = {name: self.dense[name].detach().clone() for name in self.names()}
        found, wanted = attempt(line, self.sparse), attempt(line, self.dense)
        self.lines.append(line)
        if wanted is None and found is None:
            self.part_from_hidden(line)
            self.drop_lost(line)
            self.loosen(line)
            self.compare(line)
            self.part_layouts(line)
            return True
        if wanted is not None and found is not None:
            if not isinstance(found, type(wanted)) and not is_lacking(wanted):
                raise Wrong(f"{line}\nraises {found!r}\ninstead of {wanted!r}")
            if not isinstance(found, ScorchError) and str(found) != str(wanted) and not is_grown_up(found):
                raise Wrong(f"{line}\nraises {found!r}, which is no error of ours")
            self.counts["refused by both"] += 1
            if any(not equal(self.dense[name].detach(), value) for name, value in before.items()):
                return False  # torch found the wrong index after it had written to others
            self.compare(line)
            return True
        if wanted is not None:
            if is_lacking(wanted):
                self.counts["accepted for a dtype that dense tensors lack"] += 1
                return False
            if STRIDES in str(wanted) and self.is_apart(line):
                self.counts[
                    "views of what was made of dense results, which torch lays out as their operands"
                ] += 1
                return False
            raise Wrong(f"{line}\nis accepted, where dense tensors raise {wanted!r}")
        reason = next((part for part in REFUSED if part in str(found)), None)
        if reason is None:
            raise Wrong(f"{line}\nraises {found!r}, where dense tensors raise nothing") from found
        self.counts[f"refused: {reason}"] += 1
        return False

    def part_from_hidden(self, line: str) -> None:
        """Copy a new tensor of which dense torch made a view of another on the way, as that of einsum may be."""
        name = line.partition(" = ")[0]
        made = self.dense.get(name)
        others = [self.dense[other] for other in self.names() if other != name]
        if not isinstance(made, torch.Tensor) or not is_view(made):
            return
        if all(memory_of(made) != memory_of(other) for other in others):
            self.dense[name], self.sparse[name] = made.clone(), self.sparse[name].clone()

    def drop_lost(self, line: str) -> None:
        """Forget a gradient that torch loses: of a leaf that is a view of what was written to."""
        if self.is_dropped:
            self.is_dropped = False
            self.counts["gradients of views of what was written to, which torch loses"] += 1
            for tensors in (self.dense, self.sparse):
                tensors[line.partition(" = ")[0]] = torch.zeros(())

    def loosen(self, line: str) -> None:
        """Allow what a line writes to be as far off as what it was computed of, in whichever dtype that was."""
        touched = [name for name in re.findall(r"\bt\d+\b", line) if name in self.names()]
        if not touched:
            return
        limit = max(self.limit_of(name) for name in touched)
        for name in self.names():
            if memory_of(self.dense[name]) == memory_of(self.dense[touched[0]]):
                self.limits[name] = limit

    def part_layouts(self, line: str) -> None:
        """Remember what lies in memory otherwise than a dense tensor, and why; without a reason it is wrong."""
        name = line.partition(" = ")[0]
        found, wanted = self.sparse.get(name), self.dense.get(name)
        if not isinstance(found, torch.Tensor) or found.is_contiguous() == wanted.is_contiguous():
            return
        if isinstance(found, scorch.SparseTensor) and not self.is_apart(line):
            raise Wrong(f"after {line}\n{name} does not lie in memory as a dense tensor: {wanted.stride()}")
        self.apart.add(name)

    def limit_of(self, name: str) -> float:
        return max(TOLERANCE.get(self.dense[name].dtype, 1e-8), self.limits.get(name, 0.0))

    def is_apart(self, line: str) -> bool:
        """Whether a line reads what is a dense result, or was made of one: those lie in memory row by row.

        So may comparisons, which Python asks a sparse tensor for first, wherever it stands.
        """
        read = [name for name in re.findall(r"\bt\d+\b", line.partition(" = ")[2]) if name in self.names()]
        return bool(COMPARISON.search(line)) or "+ 0)" in line or any(name in self.apart for name in read)

    def names(self) -> list[str]:
        return [
            name for name, value in self.dense.items() if isinstance(value, torch.Tensor) and is_told(value)
        ]

    def compare(self, line: str) -> None:
        for name in self.names():
            try:
                self.compare_one(name)
            except AssertionError as error:
                raise Wrong(f"after {line}\n{name} is wrong: {error}") from error

    def compare_one(self, name: str) -> None:
        found, wanted = self.sparse[name], self.dense[name]
        assert isinstance(found, torch.Tensor), f"{type(found)} instead of a tensor"
        same(found, wanted, self.limit_of(name))
        if isinstance(found, scorch.SparseTensor) and wanted.requires_grad and wanted.is_leaf:
            mask, before = places_of(found), self.stored.get(name)
            self.stored[name] = mask if before is None or before.shape != mask.shape else mask & before
        if wanted.requires_grad != found.requires_grad:
            raise AssertionError(f"requires_grad is {found.requires_grad} instead of {wanted.requires_grad}")
        if not wanted.is_leaf or wanted.grad is None:
            return
        assert found.is_leaf and found.grad is not None, "there is no gradient"
        if not bool(wanted.grad.isfinite().all()):
            return
        if isinstance(found.grad, scorch.SparseTensor):
            check_storage(found.grad)
        mask = self.stored.get(name)
        limit = max(self.limit_of(other) for other in self.names() if self.dense[other].requires_grad)
        same(masked(plain_of(found.grad), mask), masked(wanted.grad, mask), limit)

    def live(self) -> list[Live]:
        return [
            Live(
                name,
                self.dense[name],
                isinstance(self.sparse[name], scorch.SparseTensor),
                self.sparse[name].is_contiguous() == self.dense[name].is_contiguous(),
            )
            for name in self.names()
        ]

    def tidy(self, draw: Draw) -> str | None:
        """A line that deletes what is too large, has numbers beyond measure, or is one tensor too many."""
        names = self.names()
        for name in names:
            value = self.dense[name].detach()
            size = value.abs().double() if value.numel() and value.dtype != torch.bool else torch.zeros(1)
            if value.numel() > MOST_ELEMENTS or value.dim() > 4 or not bool((size < LARGE).all()):
                return f"del {name}"
        return f"del {draw.choice(names)}" if len(names) > MOST_LIVE else None


def converted(x: Any, form: str) -> Any:
    if not isinstance(x, scorch.SparseTensor):
        return scorch.from_torch(x, format=form)
    if x.format != scorch.Format(form, dims=x.dim()):
        return x.to_format(form).clone()  # with values of its own
    return x.clone(memory_format=torch.contiguous_format)


def as_view(x: Any) -> Any:
    """A view; a single element of a sparse tensor is a number of its own (docs/guide/limits.md)."""
    return x if x.dim() else x.clone()


def is_view(tensor: torch.Tensor) -> bool:
    if isinstance(tensor, scorch.SparseTensor):
        return tensor.view_of is not None
    return tensor._base is not None


def memory_of(tensor: torch.Tensor) -> int:
    """A number that tensors have in common if they are views of the same one."""
    if isinstance(tensor, scorch.SparseTensor):
        origin = tensor.storage.origin
        return id(tensor.storage if origin is None else origin.source)
    return tensor.untyped_storage().data_ptr()


def masked(gradient: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """A gradient at places that are stored; others of a sparse tensor have none."""
    return gradient if mask is None else torch.where(mask, gradient, torch.zeros((), dtype=gradient.dtype))


def plain_of(tensor: torch.Tensor) -> torch.Tensor:
    return dense_of(tensor) if isinstance(tensor, scorch.SparseTensor) else tensor.detach()


def is_told(tensor: torch.Tensor) -> bool:
    """Whether torch tells how a tensor was made; of some views of what was written to it refuses to."""
    try:
        _ = tensor.grad_fn
    except RuntimeError:
        return False
    return True


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.equal(a, b)) or torch.allclose(a, b, equal_nan=True)


def is_lacking(error: BaseException) -> bool:
    return isinstance(error, NotImplementedError) or any(part in str(error) for part in LACKING)


def is_grown_up(error: BaseException) -> bool:
    """Whether torch itself refused the call before it reached us, for example by its signature."""
    return type(error).__module__ == "builtins" and not str(error).startswith("INTERNAL")


def places_of(tensor: torch.Tensor) -> torch.Tensor:
    """Where a tensor stores something."""
    if not isinstance(tensor, scorch.SparseTensor):
        return torch.ones(tensor.shape, dtype=torch.bool)
    mask = torch.zeros(tensor.shape, dtype=torch.bool)
    crd = coordinates_of(tensor.storage)
    kept = torch.ones(tensor.storage.values.numel(), dtype=torch.bool)
    for array, size in zip(crd, tensor.shape, strict=True):
        kept &= array < size
    if crd:
        mask[tuple(array[kept] for array in crd)] = True
    return mask


def attempt(line: str, names: dict[str, Any]) -> Exception | None:
    """Run a line; the exception, if it raises one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exec(line, names)
        except Exception as error:
            return error
    return None


def same(found: torch.Tensor, wanted: torch.Tensor, limit: float) -> None:
    if isinstance(found, scorch.SparseTensor):
        check_storage(found)
    plain = plain_of(found)
    wanted = wanted.detach().resolve_conj().resolve_neg()
    assert plain.dtype == wanted.dtype, f"{plain.dtype} instead of {wanted.dtype}"
    assert plain.shape == wanted.shape, f"{tuple(plain.shape)} instead of {tuple(wanted.shape)}"
    if (
        not torch.allclose(plain, wanted, rtol=limit, atol=limit, equal_nan=True)
        if wanted.dtype != torch.bool
        else (not torch.equal(plain, wanted))
    ):
        raise AssertionError(f"\n{plain}\ninstead of\n{wanted}")


# programs --------------------------------------------------------------------------------------------


def run_program(seed: int, without: Collection[str] = ()) -> Run:
    """Draw and run the program with this number; raises ``Wrong`` with a script if it goes wrong."""
    draw = Draw(seed)
    run = Run()
    run_names = iter(f"t{n}" for n in range(1000))
    try:
        for _ in range(draw.choice([1, 2, 2, 3])):
            run.step(f"{next(run_names)} = {first_tensor(draw)}")
        names = [name for name in FAMILIES if name not in without]
        for _ in range(draw.randint(5, 15)):
            live = run.live()
            if any(is_lost(one.dense) for one in live):
                names = [name for name in names if name not in ("gradient", "backward")]
            weights = [FAMILIES[name][0] for name in names]
            stored = [one for one in live if one.is_sparse]
            if not live:
                break
            x = draw.choice(stored if stored and draw.random() < 0.9 else live)
            line = FAMILIES[draw.choices(names, weights)[0]][1](draw, x, live)
            if line is None:
                continue
            if not run.step(line.replace("NEW", next(run_names))):
                break
            while (line := run.tidy(draw)) is not None:
                run.step(line)
            run.counts["steps"] += 1
    except Wrong as error:
        lines = shrunk(run.lines, str(error))
        raise Wrong(f"program {seed}\n{error}\n\n{script(lines)}") from error
    return run


def first_tensor(draw: Draw) -> str:
    shape = draw.choice(SHAPES)
    dtype = draw.choice(["float32", "float64", "float32", "int64", "bool"])
    return f'sp({draw.literal(shape, dtype)}, "{draw.choice(FORMATS[len(shape)])}")'


def kind_of(message: str) -> str:
    """What is wrong, without names and numbers: a shorter program must go wrong in the same way."""
    for part in ("is accepted", "no error of ours", "instead of a tensor", "requires_grad", "no gradient"):
        if part in message:
            return part
    return "raises" if "raises" in message else "is wrong"


def goes_wrong(lines: Sequence[str], message: str) -> bool:
    run = Run()
    try:
        for line in lines:
            if not run.step(line):
                return False
    except Wrong as error:
        return kind_of(str(error)) == kind_of(message)
    except Exception:
        return False
    return False


def shrunk(lines: list[str], message: str) -> list[str]:
    """The lines that are needed to go wrong."""
    place = len(lines) - 2
    while place >= 0:
        shorter = lines[:place] + lines[place + 1 :]
        if goes_wrong(shorter, message):
            lines = shorter
        place -= 1
    return lines


def script(lines: Sequence[str]) -> str:
    """A program that runs by itself and prints both results."""
    text = "\n".join(f"    {line!r}," for line in lines)
    return f"""import torch, scorch
PROGRAM = [
{text}
]
names = {{"torch": torch, "grad": lambda y, x, _: torch.autograd.grad(y, x, retain_graph=True)[0]}}
names["view"] = lambda x: x if x.dim() else x.clone()
dense = names | {{"sp": lambda x, f: x, "cv": lambda x, f: x.clone(), "dn": lambda x: x.clone()}}
sparse = names | {{"sp": lambda x, f: scorch.from_torch(x, format=f)}}
sparse["cv"] = lambda x, f: (x if isinstance(x, scorch.SparseTensor) else scorch.from_torch(x)).to_format(f)
sparse["dn"] = lambda x: x.to_dense()
for line in PROGRAM:
    for which in (dense, sparse):
        try:
            exec(line, which)
        except Exception as error:
            print(line, "dense" if which is dense else "sparse", repr(error))
for name in [name for name in dense if name[0] == "t" and name[1:].isdigit()]:
    print(name, dense[name], getattr(sparse[name], "to_dense", lambda: sparse[name])(), sep="\\n")"""


def main(arguments: Sequence[str]) -> None:
    first, *rest = map(int, arguments)
    counts: Counter[str] = Counter()
    for seed in range(first, (rest[0] if rest else first) + 1):
        try:
            run = run_program(seed)
        except Wrong as error:
            counts["WRONG"] += 1
            print(error, "\n" + "-" * 80, flush=True)
        except Exception as error:
            counts["BROKEN"] += 1
            print(f"program {seed} broke the test itself: {error!r}", flush=True)
        else:
            counts += run.counts
    print(dict(counts))


if __name__ == "__main__":
    main(sys.argv[1:])
