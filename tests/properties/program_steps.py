# ruff: noqa: E501
"""The lines that random programs are made of, drawn for the tensors that a program has so far.

A line is one statement of Python. It is run twice: where ``sp(x, "csr")`` makes a sparse tensor, and where it
leaves ``x`` dense. Each family below draws one line, mostly one that torch accepts, now and then one that it
refuses: dimensions, sizes and indices are drawn a little too wide.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

FORMATS = {
    1: ["s", "s", "o"],
    2: ["csr", "csr", "csr", "coo", "csc", "dcsr", "bsr(2,2)"],
    3: ["ooo", "dss", "sss"],
}
SHAPES = [(4,), (3, 4), (3, 4), (3, 4), (4, 3), (4, 4), (2, 3, 4)]
DTYPES = (
    ["float32"] * 5 + ["float64"] * 3 + ["int64"] * 3 + ["bool", "int32", "complex64", "bfloat16", "uint8"]
)
WRONG = 0.04  # how often an argument is drawn from a range that is too wide


@dataclass(frozen=True)
class Live:
    """A tensor of a program: its dense form, and whether the other one is sparse."""

    name: str
    dense: torch.Tensor
    is_sparse: bool
    is_laid_out_alike: bool = True  # both are contiguous, or neither: a dense result may be otherwise

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.dense.shape)

    @property
    def is_float(self) -> bool:
        return self.dense.is_floating_point()

    @property
    def learns(self) -> bool:
        return self.dense.requires_grad

    @property
    def is_exact(self) -> bool:
        """Whether all numbers are small multiples of a power of two: then ties are ties on both sides."""
        if not self.is_float:
            return True
        scaled = self.dense.detach() * 16
        return bool((scaled == scaled.round()).all())


class Draw(random.Random):
    """Random arguments."""

    def dim(self, rank: int) -> int:
        wide = 1 if self.random() < WRONG else 0
        return self.randint(-max(rank, 1) - wide, max(rank, 1) - 1 + wide)

    def dims(self, rank: int) -> str:
        chosen = self.random()
        if chosen < 0.3 or not rank:
            return ""
        if chosen < 0.7:
            return str(self.dim(rank))
        count = self.randint(1, rank)
        found = self.sample(range(rank), count)
        if self.random() < WRONG:
            found.append(found[0])
        return str(tuple(found))

    def place(self, size: int) -> int:
        wide = 1 if self.random() < WRONG else 0
        return self.randint(-size - wide, size - 1 + wide) if size or wide else 0

    def number(self, dtype: torch.dtype | None = None) -> str:
        pool = ["2", "-1", "3", "0", "True"]
        if dtype is None or dtype.is_floating_point or dtype.is_complex or self.random() < 0.1:
            pool += ["0.5", "-1.5", "2.0"]
        return self.choice(pool)

    def literal(self, shape: Sequence[int], dtype: str, density: float = 0.5) -> str:
        """Text of a dense tensor, of small numbers that are exact in every dtype."""

        def value() -> object:
            if self.random() >= density:
                return False if dtype == "bool" else 0
            number = self.choice([1, 2, 3]) if dtype in ("uint8", "bool") else self.choice([1, 2, 3, -1, -2])
            if dtype == "bool":
                return True
            return complex(number, self.choice([0, 1])) if dtype == "complex64" else number

        def nested(sizes: Sequence[int]) -> object:
            return [nested(sizes[1:]) for _ in range(sizes[0])] if sizes else value()

        made = f"torch.tensor({nested(list(shape))}, dtype=torch.{dtype})"
        return made if all(shape) else f"{made}.reshape({tuple(shape)})"

    def tensor(self, shape: Sequence[int], dtype: str, density: float = 0.5) -> str:
        """Text of a new tensor, sparse or dense."""
        made = self.literal(shape, dtype, density)
        formats = FORMATS.get(len(shape))
        is_stored = formats is not None and all(shape) and self.random() < 0.7
        return f'sp({made}, "{self.choice(formats)}")' if is_stored and formats else made

    def other(self, live: Sequence[Live], like: Live) -> str:
        """A tensor that broadcasts with ``like``: another of the program, or a new one."""
        shape = like.shape
        fitting = [
            one
            for one in live
            if len(one.shape) <= len(shape)
            and all(a in (b, 1) for a, b in zip(one.shape[::-1], shape[::-1], strict=False))
        ]
        if self.random() < WRONG:
            return self.choice(live).name
        if fitting and self.random() < 0.6:
            return self.choice(fitting).name
        own = list(shape)
        if own and self.random() < 0.3:
            own[self.randrange(len(own))] = 1
        if own and self.random() < 0.2:
            own = own[1:]
        return self.tensor(own, name_of(like.dense.dtype) if self.random() < 0.85 else self.choice(DTYPES))

    def indices(self, count: Sequence[int], size: int) -> str:
        def nested(sizes: Sequence[int]) -> object:
            if sizes:
                return [nested(sizes[1:]) for _ in range(sizes[0])]
            return self.randint(-1, size) if self.random() < WRONG / 2 else self.randrange(max(size, 1))

        made = f"torch.tensor({nested(list(count))}, dtype=torch.int64)"
        return made if all(count) else f"{made}.reshape({tuple(count)})"

    def key(self, shape: Sequence[int], lists: bool) -> str:
        """What may stand between brackets; ``lists``: also what selects by lists and masks."""
        if lists and shape and self.random() < 0.15:
            return self.literal(shape, "bool")
        found = []
        listed = False
        for size in shape:
            kind = self.choice(
                ["int", "slice", "slice", "slice", "all", "None", "stop", *(["list"] if lists else [])]
            )
            if kind == "stop":
                break
            if kind == "None":
                found.append("None")
            if kind == "int" and size:
                found.append(str(self.place(size)))
            elif kind == "list" and size and not listed:
                found.append(
                    self.indices([self.choice([1, 2, 2, 3])], size).replace(", dtype=torch.int64", "")
                )
                listed = True
            elif kind == "slice":
                start, stop = sorted(self.choices(range(size + 1), k=2))
                step = self.choice(["", "", ":2"])
                found.append(f"{start or ''}:{stop if stop < size else ''}{step}")
            else:
                found.append(":")
        if self.random() < 0.1:
            found.append("...")
        return ", ".join(found) or "..."


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


Family = Callable[[Draw, Live, Sequence[Live]], str | None]
FAMILIES: dict[str, tuple[float, Family]] = {}


def family(weight: float) -> Callable[[Family], Family]:
    """Register a family: how often it is drawn, and its name, by which it can be left out."""

    def register(function: Family) -> Family:
        FAMILIES[function.__name__] = weight, function
        return function

    return register


def value(line: str | None) -> str | None:
    """A line that makes a new tensor of what an expression gives."""
    return None if line is None else f"NEW = {line}"


# new tensors ----------------------------------------------------------------------------------------


@family(1.0)
def creation(draw: Draw, x: Live, live: Sequence[Live]) -> str | None:
    return value(draw.tensor(draw.choice(SHAPES), draw.choice(DTYPES)))


@family(1.0)
def conversion(draw: Draw, x: Live, live: Sequence[Live]) -> str | None:
    forms = FORMATS.get(len(x.shape))
    options = [f"dn({x.name})", f"{x.name}.clone()", f"{x.name}.detach()", f"torch.zeros_like({x.name})"]
    if forms and all(x.shape):
        options += [f'cv({x.name}, "{draw.choice(forms)}")'] * 4
    return value(draw.choice(options))


@family(0.7)
def cast(draw: Draw, x: Live, live: Sequence[Live]) -> str | None:
    if x.dense.is_complex():
        return value(
            draw.choice([f"{x.name}.real.clone()", f"{x.name}.abs()", f"{x.name}.to(torch.complex128)"])
        )
    return value(f"{x.name}.to(torch.{draw.choice(['float64', 'float32', 'int64', 'bool', 'complex64'])})")


# views ----------------------------------------------------------------------------------------------


@family(3.0)
def view(draw: Draw, x: Live, live: Sequence[Live]) -> str | None:
    rank, name = len(x.shape), x.name
    d, e = draw.dim(rank), draw.dim(rank)
    options = [f"{name}.unsqueeze({draw.dim(rank + 1)})", f"{name}.squeeze()", f"{name}.squeeze({d})"]
    if rank:
        size = x.shape[d] if -rank <= d < rank else 1
        start = draw.randint(0, size)
        order = draw.sample(range(rank), rank)
        options += [
            f"{name}[{draw.key(x.shape, False)}]",
            f"{name}[{draw.key(x.shape, False)}]",
            f"{name}.transpose({d}, {e})",
            f"{name}.permute({', '.join(map(str, order))})",
            f"{name}.select({d}, {draw.place(size)})",
            f"{name}.narrow({d}, {start}, {draw.randint(0, size - start)})",
            f"{name}.unbind({d})[0]",
            f"{name}.chunk(2, {d})[0]",
            f"{name}.split(2, {d})[-1]",
            f"{name}.movedim({d}, {e})",
            f"{name}.view(-1)",
            f"{name}.reshape(-1)",
            f"{name}.contiguous()",
            f"{name}.view_as({draw.literal(x.shape, 'float32')})",
            f"{name}.expand_as({draw.literal(x.shape, 'float32')})",
            f"{name}.to(torch.{name_of(x.dense.dtype)})",
            f"{name}.expand(2, {', '.join(['-1'] * rank)})",
        ]
        widths = [4 if size == 1 and draw.random() < 0.7 else size for size in x.shape]
        options.append(f"{name}.expand({', '.join(map(str, widths))})")
    if rank == 2:
        options += [
            f"{name}.T",
            f"{name}.t()",
            f"{name}.mT",
            f"{name}.diagonal()",
            f"{name}.diagonal({draw.randint(-2, 2)})",
        ]
    if rank > 2:
        options += [f"{name}.mT", f"{name}.flatten(1).clone()", f"{name}.diagonal(0, {d}, {e})"]
    made = draw.choice(options)
    if not x.is_laid_out_alike and ("reshape" in made or "contiguous" in made):
        made += ".clone()"  # a view of one and a copy of the other
    return f"NEW = view({made})"


# writing --------------------------------------------------------------------------------------------

ALONE = [
    "neg_()",
    "abs_()",
    "relu_()",
    "zero_()",
    "sign_()",
    "floor_()",
    "square_()",
    "tanh_()",
    "sin_()",
    "clamp_(-1, 1)",
]


@family(2.5)
def in_place(draw: Draw, x: Live, live: Sequence[Live]) -> str | None:
    name, dtype = x.name, x.dense.dtype
    number = draw.number(dtype)
    chosen = draw.random()
    if chosen < 0.3:
        line = f"{name}.{draw.choice(ALONE)}"
    elif chosen < 0.5:
        call = draw.choice(["mul_", "mul_", "div_", "add_", "sub_", "fill_", "pow_"])
        line = f"{name}.{call}({number if call != 'pow_' else draw.choice(['2', '3', '0'])})"
    elif chosen < 0.85:
        call = draw.choice(["mul_", "add_", "sub_", "copy_", "add_", "mul_", "maximum_"])
        other = apart(draw.other(live, x), x, live)
        line = (
            f"{name}.copy_(torch.maximum({name}, {other}))"
            if call == "maximum_"
            else f"{name}.{call}({other})"
        )
    else:
        mask = draw.literal(x.shape, "bool")
        line = f"{name}.masked_fill_({mask}, {number})"
    return line


def apart(other: str, x: Live, live: Sequence[Live]) -> str:
    """An operand for a write to ``x``, copied if torch reads it while it writes, in an order of its own."""
    given = next((one.dense for one in live if one.name == other), None)
    if given is None or other == x.name:
        return other
    is_shared = given.untyped_storage().data_ptr() == x.dense.untyped_storage().data_ptr()
    is_checked = has_no_gaps(given) and has_no_gaps(x.dense)
    return f"{other}.clone()" if is_shared and not is_checked else other


def has_no_gaps(tensor: torch.Tensor) -> bool:
    """Whether the elements fill a stretch of memory: only for such tensors torch looks whether they overlap."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return reach + 1 == tensor.numel() and not is_expanded(tensor)


@family(0.3)
def reshaping_in_place(draw: Draw, x: Live, live: Sequence[Live]) -> str | None:
    rank = len(x.shape)
    return draw.choice(
        [
            f"{x.name}.t_()",
            f"{x.name}.squeeze_({draw.dim(rank)})",
            f"{x.name}.unsqueeze_({draw.dim(rank + 1)})",
            f"{x.name}.transpose_({draw.dim(rank)}, {draw.dim(rank)})",
        ]
    )


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether elements share memory: of several numbers that are written to one, any may be left."""
    return any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


@family(2.0)
def assignment(draw: Draw, x: Live, live: Sequence[Live]) -> str | None:
    if not x.shape:
        return None
    key = draw.key(x.shape, True)
    number = draw.number(x.dense.dtype)
    if draw.random() < 0.6 or is_expanded(x.dense):
        sign = "=" if "tensor" in key else draw.choice(["=", "=", "+=", "*="])
        return f"{x.name}[{key}] {sign} {number}"
    try:
        target = eval(f"x[{key}]", {"x": x.dense.detach(), "torch": torch})
    except Exception:
        return f"{x.name}[{key}] = {number}"
    shape = [1 if draw.random() < 0.2 else size for size in target.shape]
    return f"{x.name}[{key}] = {draw.tensor(shape, name_of(x.dense.dtype))}"


@family(1.2)
def index_writing(draw: Draw, x: Live, live: Sequence[Live]) -> str | None:
    rank, name = len(x.shape), x.name
    if not rank or not all(x.shape):
        return None
    d = draw.dim(rank)
    inside = d % rank if -rank <= d < rank else 0
    size, dtype = x.shape[inside], name_of(x.dense.dtype)
    count = draw.choice([1, 2])
    places = draw.sample(range(size), min(count, size))
    chosen = f"torch.tensor({places})" if draw.random() > WRONG else draw.indices([len(places)], size)
    source = list(x.shape)
    source[inside] = len(places)
    grid = [min(2, size) for size in x.shape]
    number = draw.number(x.dense.dtype)
    mark = draw.choice(["_", ""])
    columns = draw.sample(range(size), grid[inside])
    index = draw.indices(grid, size)
    if draw.random() > WRONG:  # places that do not repeat along the dimension
        made = torch.tensor(columns).reshape([-1 if n == inside else 1 for n in range(rank)]).expand(grid)
        index = f"torch.tensor({made.tolist()})"
    where = ", ".join(f"torch.tensor({[draw.randrange(size) for _ in range(1)]})" for size in x.shape)
    options = [
        f"{name}.index_fill{mark}({d}, {chosen}, {number})",
        f"{name}.index_add{mark}({d}, {chosen}, {draw.tensor(source, dtype)})",
        f"{name}.index_copy{mark}({d}, {chosen}, {draw.tensor(source, dtype)})",
        f"{name}.scatter{mark}({d}, {index}, {number})",
        f"{name}.scatter{mark}({d}, {index}, {draw.literal(grid, dtype)})",
        f"{name}.scatter_add{mark}({d}, {index}, {draw.literal(grid, dtype)})",
        f"{name}.index_put{mark}(({where},), {draw.literal([1], dtype, 1.0)}, accumulate={draw.choice([True, False])})",
        f"{name}.masked_fill{mark}({draw.literal(x.shape, 'bool')}, {number})",
    ]
    if not mark:
        piece = [size for n, size in enumerate(x.shape) if n != inside]
        options.append(f"{name}.select_scatter({draw.literal(piece, dtype)}, {d}, {draw.place(size)})")
        options.append(f"{name}.slice_scatter({draw.literal(source, dtype)}, {d}, 0, {len(places)})")
    line = draw.choice(options)
    return line if mark else value(line)


# reading --------------------------------------------------------------------------------------------


@family(1.5)
def indexing(draw: Draw, x: Live, live: Sequence[Live]) -> str | None:
    rank, name = len(x.shape), x.name
    if not rank or not all(x.shape):
        return None
    d = draw.dim(rank)
    size = x.shape[d] if -rank <= d < rank else 1
    grid = [min(2, size) for size in x.shape]
    options = [
        f"{name}[{draw.key(x.shape, True)}].clone()",
        f"{name}.index_select({d}, {draw.indices([2], size)})",
        f"{name}.gather({d}, {draw.indices(grid, size)})",
        f"{name}.take({draw.indices([2], 3)})",
        f"torch.masked_select({name}, {draw.literal(x.shape, 'bool')})",
        f"torch.take_along_dim({name}, {draw.indices(grid, size)}, {d})",
        f"{name}.nonzero()",
        f"{name}.tril()",
        f"{name}.triu({draw.randint(-1, 1)})",
        f"{name}.flip({d})",
        f"{name}.roll({draw.randint(-2, 2)}, {d})",
    ]
    return value(draw.choice(options))


@family(1.0)
def joining(draw: Draw, x: Live, live: Sequence[Live]) -> str | None:
    rank, name = len(x.shape), x.name
    d = draw.dim(rank)
    alike = (
        [one.name for one in live if one.shape == x.shape]
        if draw.random() > WRONG
        else [o.name for o in live]
    )
    other = draw.choice(alike)
    condition = draw.choice([f"{name} != 0", f"{name} == 0", draw.literal(x.shape, "bool")])
    return value(
        draw.choice(
            [
                f"torch.cat([{name}, {other}], {d})",
                f"torch.cat([{other}, {name}, {other}], {d})",
                f"torch.stack([{name}, {other}], {d})",
                f"torch.where({condition}, {name}, {draw.other(live, x)})",
                f"torch.where({condition}, {name}, {draw.number()})",
            ]
        )
    )


# computing ------------------------------------------------------------------------------------------

SMOOTH = ["neg", "sin", "square", "tanh", "sigmoid", "exp", "expm1", "atan", "positive", "erf"]
FUNCTIONS = [
    *SMOOTH,
    "abs",
    "sign",
    "relu",
    "floor",
    "round",
    "isnan",
    "logical_not",
    "cos",
    "sqrt",
    "log1p",
    "reciprocal",
]
SIGNS = ["+", "-", "*", "*", "+"]
COMPARISONS = ["<", "<=", ">", ">=", "==", "!="]
PAIRS = [
    "maximum",
    "minimum",
    "div",
    "pow",
    "fmod",
    "logical_and",
    "logical_or",
    "eq",
    "atan2",
    "floor_divide",
]


@family(1.6)
def unary(draw: Draw, x: Live, live: Sequence[Live]) -> str | None:
    if draw.random() < 0.3:
        number = draw.number(x.dense.dtype)
        sign = draw.choice([*SIGNS, *([] if x.learns else COMPARISONS)])
        return value(draw.choice([f"{x.name} {sign} {number}", f"{number} {sign} {x.name}"]))
    call = draw.choice(SMOOTH if x.learns else FUNCTIONS)
    return value(f"torch.{call}({unsigned(x.name, [x]) if call == 'reciprocal' else x.name})")


@family(2.2)
def binary(draw: Draw, x: Live, live: Sequence[Live]) -> str | None:
    other = draw.other(live, x)
    learns = x.learns or any(one.name == other and one.learns for one in live)
    if learns or draw.random() < 0.6:
        sign = draw.choice(SIGNS if learns or draw.random() < 0.7 else COMPARISONS)
        return value(draw.choice([f"{x.name} {sign} {other}", f"{other} {sign} {x.name}"]))
    return value(f"torch.{draw.choice(PAIRS)}({unsigned(x.name, live)}, {unsigned(other, live)})")


def unsigned(name: str, live: Sequence[Live]) -> str:
    """A tensor whose zeros have no sign, for functions that tell them apart: zeros not stored have none."""
    is_float = any(one.name == name and one.is_float for one in live)
    return f"({name} + 0)" if is_float else name


REDUCTIONS = ["sum", "sum", "mean", "amax", "amin", "any", "all", "prod", "std", "var", "norm"]
LINEAR = ["sum", "mean"]


@family(1.4)
def reduction(draw: Draw, x: Live, live: Sequence[Live]) -> str | None:
    rank = len(x.shape)
    chosen = draw.random()
    if chosen < 0.7:
        call = draw.choice(LINEAR if x.learns else REDUCTIONS)
        dims = draw.dims(rank)
        if call == "prod" and "(" in dims:
            dims = ""
        keep = ", keepdim=True" if dims and draw.random() < 0.3 else ""
        if call == "norm":
            return value(f"torch.linalg.vector_norm({x.name}, {draw.choice(['2', '1'])})")
        return value(f"{x.name}.{call}({dims}{keep})")
    d = draw.dim(rank)
    call = draw.choice(["cumsum", "softmax", "log_softmax", "logsumexp", "argmax", "sort"])
    if x.learns:
        call = draw.choice(["cumsum", "softmax", "logsumexp"])
    if call == "argmax" and not x.is_exact:
        call = "sort"
    if call == "sort":
        return value(f"{x.name}.sort({d}, stable=True)[0]")
    return value(f"{x.name}.{call}({d})")


@family(1.6)
def product(draw: Draw, x: Live, live: Sequence[Live]) -> str | None:
    rank, name, dtype = len(x.shape), x.name, name_of(x.dense.dtype)
    if not rank or x.dense.dtype == torch.bool:
        return None
    inner = x.shape[-1] + (draw.random() < WRONG)
    is_narrow = dtype in ("int32", "uint8")  # torch sums an index of one operand alone in int64
    if draw.random() < WRONG and not is_narrow:
        inner = 1
    size = draw.choice([3, 4])
    fitting = [
        one.name
        for one in live
        if one.dense.dtype == x.dense.dtype and one.shape and (one.shape[-2:] or (0,))[0] == inner
    ]
    right = draw.choice(fitting) if fitting and draw.random() < 0.5 else draw.tensor([inner, size], dtype)
    options = [f"{name} @ {right}", f"torch.matmul({name}, {draw.tensor([inner], dtype)})"]
    options.append(f"torch.tensordot({name}, {draw.tensor([inner, size], dtype)}, 1)")
    if rank == 1:
        options += [
            f"torch.dot({name}, {draw.tensor([inner], dtype)})",
            f"torch.outer({name}, {draw.tensor([size], dtype)})",
        ]
    if rank == 2:
        rows = x.shape[0]
        options += [
            f"torch.mm({name}, {right})",
            f"torch.mv({name}, {draw.tensor([inner], dtype)})",
            f"{draw.tensor([size, rows], dtype)} @ {name}",
            f"{name} @ {name}.T",
            f'torch.einsum("ij,kj->ik", {name}, {draw.tensor([size, inner], dtype)})',
            f'torch.einsum("ij,ij->i", {name}, {name})',
            f"torch.addmm({draw.tensor([size], dtype)}, {name}, {draw.tensor([inner, size], dtype)})",
            f"torch.nn.functional.linear({name}, {draw.tensor([size, inner], dtype)})",
        ]
    if rank == 3:
        options += [
            f"torch.bmm({name}, {draw.tensor([x.shape[0], inner, size], dtype)})",
            f"{name} @ {name}.mT",
        ]
    return value(draw.choice(options))


# gradients ------------------------------------------------------------------------------------------


@family(1.0)
def learning(draw: Draw, x: Live, live: Sequence[Live]) -> str | None:
    floats = [one for one in live if one.is_float and one.dense.dtype.itemsize > 2]
    if not floats:
        return None
    return f"{draw.choice(floats).name}.requires_grad_()"


def is_lost(view: torch.Tensor) -> bool:
    """Whether a view was made before its base required a gradient: torch then has no gradient for either."""
    return view._base is not None and view.is_leaf and view._base.requires_grad


@family(1.2)
def gradient(draw: Draw, x: Live, live: Sequence[Live]) -> str | None:
    leaves = [one for one in live if one.learns and one.dense.is_leaf]
    made = [one for one in live if one.learns and not one.dense.is_leaf and one.is_float]
    if not leaves or not made:
        return None
    result, leaf = draw.choice(made), draw.choice(leaves)
    weight = draw.literal(result.shape, name_of(result.dense.dtype), 0.8)
    total = draw.choice([f"{result.name}.sum()", f"({result.name} * {weight}).sum()"])
    return f'NEW = grad({total}, {leaf.name}, "{leaf.name}")'


@family(0.4)
def backward(draw: Draw, x: Live, live: Sequence[Live]) -> str | None:
    made = [one for one in live if one.learns and not one.dense.is_leaf and one.is_float]
    if not made:
        return None
    keep = draw.choice(["retain_graph=True", "retain_graph=True", ""])
    return f"{draw.choice(made).name}.sum().backward({keep})"


@family(0.5)
def without_gradients(draw: Draw, x: Live, live: Sequence[Live]) -> str | None:
    """A block under ``no_grad``, where leaves may be written to."""
    line = in_place(draw, x, live) if draw.random() < 0.6 else unary(draw, x, live)
    return None if line is None else f"with torch.no_grad(): {line}"
