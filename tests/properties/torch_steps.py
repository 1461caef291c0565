"""Random calls of torch on a tensor of any shape and dtype: functions of the tensor and of other operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from properties.drawing import Drawn, formats
from properties.drawing import tensors as tensors_in
from scorch import Format

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.bool,
    torch.complex64,
]
SIZES = [0, 1, 1, 2, 3, 4, 5]
MOST = 600  # elements of a tensor


# Most tensors are stored as one of these, so that few kernels have to be compiled; the others as anything.
POOL: dict[int, list[Format]] = {
    0: [Format("dense", dims=0)],
    1: [Format(letters, dims=1) for letters in ("s", "o", "d")]
    + [Format("sd", order=(0, 0), blocks={0: 2}, dims=1)],
    2: [Format(name, dims=2) for name in ("csr", "csc", "coo", "dcsr", "sd", "bsr(2,2)", "dense")],
    3: [Format(name, dims=3) for name in ("sss", "ooo", "dds", "dsd")] + [Format("sds", order=(2, 0, 1))],
    4: [Format(name, dims=4) for name in ("ssss", "oooo")] + [Format("dsos", order=(1, 3, 0, 2))],
}


@st.composite
def tensors(draw, shape: tuple[int, ...], dtype: torch.dtype) -> Drawn:
    """A tensor in a usual format or in any."""
    pool = POOL.get(len(shape))
    is_usual = pool is not None and draw(st.integers(0, 7)) > 0
    return draw(tensors_in(shape, dtype, draw(st.sampled_from(pool) if is_usual else formats(len(shape)))))


@dataclass
class Step:
    """``call`` is given the tensor and the ``others``, all dense or all as drawn."""

    name: str
    call: Callable[..., Any]
    others: list[Drawn] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"{self.name} {self.others}" if self.others else self.name


UNARY: dict[str, Callable[[Any], Any]] = {
    **{
        name: getattr(torch, name)
        for name in [
            "abs",
            "neg",
            "sin",
            "exp",
            "sqrt",
            "sign",
            "relu",
            "square",
            "sigmoid",
            "floor",
            "isnan",
            "isfinite",
            "logical_not",
            "tanh",
            "log1p",
            "cos",
            "reciprocal",
            "bitwise_not",
            "conj",
            "positive",
            "sgn",
            "expm1",
            "real",
            "round",
            "angle",
            "nan_to_num",
            "isinf",
            "signbit",
            "erf",
        ]
    },
    "x * 2": lambda x: x * 2,
    "1.5 * x": lambda x: 1.5 * x,
    "x + 1": lambda x: x + 1,
    "x + 0": lambda x: x + 0,
    "1 - x": lambda x: 1 - x,
    "x / 2": lambda x: x / 2,
    "2 / x": lambda x: 2 / x,
    "x / 0": lambda x: x / 0,
    "x // 2": lambda x: x // 2,
    "x % 3": lambda x: x % 3,
    "x ** 2": lambda x: x**2,
    "x ** 0": lambda x: x**0,
    "2 ** x": lambda x: 2**x,
    "x > 0": lambda x: x > 0,
    "x <= 0": lambda x: x <= 0,
    "x == 1": lambda x: x == 1,
    "x != 0": lambda x: x != 0,
    "x * inf": lambda x: x * math.inf,
    "x * nan": lambda x: x * math.nan,
    "clamp(-1, 1)": lambda x: x.clamp(-1, 1),
    "clamp(min=1)": lambda x: x.clamp(min=1),
    "x & 1": lambda x: x & 1,
    "x | 1": lambda x: x | 1,
    "x ^ True": lambda x: x ^ True,
    "gelu": F.gelu,
    "leaky_relu": F.leaky_relu,
    "softplus": F.softplus,
    "hardtanh": F.hardtanh,
    "double": lambda x: x.double(),
    "to int": lambda x: x.to(torch.int32),
    "to bool": lambda x: x.bool(),
    "to complex": lambda x: x.to(torch.complex64),
    "add_": lambda x: x.clone().add_(1),
    "mul_": lambda x: x.clone().mul_(2),
    "abs_": lambda x: x.clone().abs_(),
    "zero_": lambda x: x.clone().zero_(),
    "clone": lambda x: x.clone(),
}

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **{
        name: getattr(torch, name)
        for name in [
            "add",
            "sub",
            "mul",
            "div",
            "maximum",
            "minimum",
            "eq",
            "ne",
            "lt",
            "ge",
            "pow",
            "fmod",
            "remainder",
            "floor_divide",
            "atan2",
            "logical_and",
            "logical_or",
            "logical_xor",
            "copysign",
            "hypot",
            "bitwise_and",
            "bitwise_or",
            "xlogy",
            "fmax",
            "rsub",
            "heaviside",
        ]
    },
    "where": lambda x, y: torch.where(x != 0, x, y),
    "where of the other": lambda x, y: torch.where(y != 0, x, 0),
    "addcmul": lambda x, y: torch.addcmul(x, x, y),
    "lerp": lambda x, y: torch.lerp(x, y, 0.5),
    "masked_fill": lambda x, y: x.masked_fill(y != 0, 2),
    "mul_": lambda x, y: x.clone().mul_(y),
    "add_": lambda x, y: x.clone().add_(y),
    "sub alpha": lambda x, y: torch.sub(x, y, alpha=2),
    "div floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "mse_loss": lambda x, y: F.mse_loss(x, y),
}


@st.composite
def unary(draw, shape, dtype) -> Step:
    name = draw(st.sampled_from(list(UNARY)))
    return Step(name, UNARY[name])


@st.composite
def binary(draw, shape, dtype) -> Step:
    """With another tensor whose shape broadcasts, in either order."""
    name = draw(st.sampled_from(list(BINARY)))
    other = [draw(st.sampled_from([size, size, 1] if size != 1 else [1, 2, 3])) for size in shape]
    other = other[draw(st.integers(0, len(other))) if draw(st.booleans()) else 0 :]
    if draw(st.integers(0, 5)) == 0:
        other.insert(0, 2) if len(other) == len(shape) else None
    if math.prod(torch.broadcast_shapes(shape, other)) > MOST:
        other = list(shape)
    own = dtype if draw(st.integers(0, 2)) else draw(st.sampled_from(DTYPES))
    function, swapped = BINARY[name], draw(st.booleans())
    drawn = draw(tensors(tuple(other), own))
    if swapped and name not in ("mul_", "add_"):
        return Step(f"{name}(other, x)", lambda x, y: function(y, x), [drawn])
    return Step(f"{name}(x, other)", function, [drawn])


def _dims(draw, rank: int, several: bool = True) -> Any:
    if not rank:
        return draw(st.sampled_from([None, -1, 0]))
    one = st.integers(-rank, rank - 1)
    if not several:
        return draw(one)
    some = st.lists(st.integers(0, rank - 1), min_size=1, max_size=rank, unique=True)
    return draw(st.none() | one | some.map(tuple))


SUMMING = ["sum", "mean", "amax", "amin", "any", "all", "std", "var", "nansum", "logsumexp", "norm"]
RUNNING = ["cumsum", "cumprod", "softmax", "log_softmax"]
ALONG = ["prod", "max", "min", "argmax", "argmin", "aminmax", *RUNNING]


@st.composite
def reduction(draw, shape, dtype) -> Step:
    name = draw(st.sampled_from([*SUMMING, *ALONG, "count_nonzero"]))
    dim = _dims(draw, len(shape), name in SUMMING)
    if dim is None and name in ("logsumexp", *RUNNING):
        dim = 0
    keep = draw(st.booleans())
    text = f"{name}({dim}, keepdim={keep})"
    if name in RUNNING:
        return Step(text, lambda x: getattr(torch, name)(x, dim))
    if name == "count_nonzero":
        return Step(text, lambda x: torch.count_nonzero(x, dim))
    if dim is None or draw(st.integers(0, 4)) == 0:
        if name == "logsumexp":
            return Step(text, lambda x: torch.logsumexp(x, 0))
        return Step(f"{name}()", lambda x: getattr(torch, name)(x))
    if name == "aminmax":
        return Step(text, lambda x: tuple(torch.aminmax(x, dim=dim, keepdim=keep)))
    if name == "norm":
        power = draw(st.sampled_from([1, 2, 3, 0, math.inf]))
        return Step(f"{text} p={power}", lambda x: torch.norm(x, p=power, dim=dim, keepdim=keep))
    return Step(text, lambda x: getattr(torch, name)(x, dim, keepdim=keep))


def _factors(draw, number: int) -> list[int]:
    if number == 0:
        return [0, draw(st.sampled_from(SIZES))]
    found = []
    while number > 1 and len(found) < 4:
        divisors = [d for d in range(1, number + 1) if number % d == 0]
        found.append(draw(st.sampled_from(divisors)))
        number //= found[-1]
    return [*found, number] if number > 1 or draw(st.booleans()) else found


@st.composite
def rearrangement(draw, shape, dtype) -> Step:
    rank = len(shape)
    dim = draw(st.integers(-rank, rank - 1)) if rank else 0
    dim1 = draw(st.integers(-rank, rank - 1)) if rank else 0
    size = shape[dim] if rank else 1
    number = draw(st.integers(-3, 3))
    sizes = _factors(draw, math.prod(shape))
    order = draw(st.permutations(range(rank)))
    wide = [draw(st.sampled_from([1, 2, 3])) if s == 1 else s for s in shape]
    repeats = [draw(st.integers(0, 2)) for _ in range(rank + draw(st.integers(0, 1)))]
    flipped = draw(st.lists(st.integers(0, max(rank - 1, 0)), unique=True, max_size=rank))
    start = draw(st.integers(0, size))
    pads = [draw(st.integers(-1, 2)) for _ in range(2 * draw(st.integers(0, rank)))]
    length = draw(st.integers(0, size - start))
    place = draw(st.integers(-size, size - 1)) if size else 0
    parts = draw(st.integers(1, 4))
    steps = {
        f"reshape({sizes})": lambda x: x.reshape(sizes),
        "reshape(-1)": lambda x: x.reshape(-1),
        f"permute({order})": lambda x: x.permute(*order) if rank else x.permute(()),
        f"transpose({dim}, {dim1})": lambda x: x.transpose(dim, dim1),
        f"unsqueeze({dim})": lambda x: x.unsqueeze(dim),
        "squeeze()": lambda x: x.squeeze(),
        f"squeeze({dim})": lambda x: x.squeeze(dim),
        f"expand({wide})": lambda x: x.expand(2, *wide),
        f"repeat({repeats})": lambda x: x.repeat(*repeats) if repeats else x,
        f"flip({flipped})": lambda x: x.flip(flipped),
        f"roll({number}, {dim})": lambda x: x.roll(number, dim),
        f"roll({number})": lambda x: x.roll(number),
        f"tril({number})": lambda x: torch.tril(x, number),
        f"triu({number})": lambda x: torch.triu(x, number),
        f"diagonal({number}, {dim}, {dim1})": lambda x: x.diagonal(number, dim, dim1),
        f"diag_embed({number})": lambda x: torch.diag_embed(x, number),
        f"split({parts}, {dim})": lambda x: x.split(parts, dim),
        f"chunk({parts}, {dim})": lambda x: x.chunk(parts, dim),
        f"tensor_split({parts}, {dim})": lambda x: x.tensor_split(parts, dim),
        f"unbind({dim})": lambda x: x.unbind(dim),
        f"narrow({dim}, {start}, {length})": lambda x: x.narrow(dim, start, length),
        f"select({dim}, {place})": lambda x: x.select(dim, place),
        f"movedim({dim}, {dim1})": lambda x: x.movedim(dim, dim1),
        f"pad({pads})": lambda x: F.pad(x, pads),
        f"cat with itself along {dim}": lambda x: torch.cat([x, x, -x if x.dtype != torch.bool else x], dim),
        f"stack with itself along {dim}": lambda x: torch.stack([x, x], dim),
        "flatten": lambda x: x.flatten(),
        "T": lambda x: x.T if x.dim() == 2 else x.mT,
        "atleast_2d": torch.atleast_2d,
        "kron": lambda x: torch.kron(x, torch.tensor([[1, 0], [2, 1]], dtype=x.dtype)),
        "block_diag": lambda x: torch.block_diag(x, x),
        "rot90": torch.rot90,
        f"repeat_interleave(2, {dim})": lambda x: x.repeat_interleave(2, dim),
        f"unfold({dim}, {parts}, 1)": lambda x: x.unfold(dim, parts, 1),
    }
    name = draw(st.sampled_from(list(steps)))
    return Step(name, steps[name])


@st.composite
def joining(draw, shape, dtype) -> Step:
    """One tensor behind another, of which either may be dense."""
    rank = max(len(shape), 1)
    dim = draw(st.integers(-rank, rank - 1))
    other = list(shape)
    if shape and draw(st.booleans()):
        other[dim] = draw(st.sampled_from(SIZES))
    own = dtype if draw(st.integers(0, 3)) else draw(st.sampled_from(DTYPES))
    drawn = draw(tensors(tuple(other), own))
    if draw(st.booleans()):
        return Step(f"cat([x, other], {dim})", lambda x, y: torch.cat([x, y], dim), [drawn])
    return Step(f"stack([other, x], {dim})", lambda x, y: torch.stack([y, x], dim), [drawn])


@st.composite
def keys(draw, shape) -> Any:
    """What may stand between square brackets."""
    found: list[Any] = []
    places = draw(st.sampled_from([(), (), (2,), (3,), (2, 2), (0,)]))
    dim = 0
    while dim < len(shape):
        size = shape[dim]
        kind = draw(st.sampled_from(["int", "slice", "slice", "None", "list", "mask", "all", "stop"]))
        if kind == "stop":
            break
        if kind == "None":
            found.append(None)
            continue
        if kind == "int" and size:
            found.append(draw(st.integers(-size, size - 1)))
        elif kind == "list" and size:
            count = math.prod(places)
            chosen = [draw(st.integers(-size, size - 1)) for _ in range(count)]
            found.append(torch.tensor(chosen, dtype=torch.int64).reshape(places))
        elif kind == "mask" and not any(isinstance(key, torch.Tensor) for key in found):
            wide = draw(st.integers(1, min(2, len(shape) - dim)))
            area = shape[dim : dim + wide]
            mask = torch.tensor([draw(st.booleans()) for _ in range(math.prod(area))], dtype=torch.bool)
            found.append(mask.reshape(area))
            dim += wide - 1
            places = (int(mask.sum()),)
        elif kind == "slice":
            bounds = st.none() | st.integers(-size - 1, size + 1)
            found.append(slice(draw(bounds), draw(bounds), draw(st.sampled_from([None, 1, 2, 3]))))
        else:
            found.append(slice(None))
        dim += 1
    if dim < len(shape) and draw(st.booleans()):
        found.append(...)
    return tuple(found)


@st.composite
def indexing(draw, shape, dtype) -> Step:
    key = draw(keys(shape))
    rank = len(shape)
    if not rank or draw(st.integers(0, 3)):
        return Step(f"x[{key}]", lambda x: x[key])
    dim = draw(st.integers(-rank, rank - 1))
    size = shape[dim]
    count = draw(st.integers(0, 4)) if size else 0
    chosen = torch.tensor([draw(st.integers(0, size - 1)) for _ in range(count)], dtype=torch.int64)
    grid = [min(s, 2) for s in shape]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    inside = torch.randint(0, max(size, 1), grid if size else [0] * rank, generator=generator)
    steps = {
        f"index_select({dim}, {chosen})": lambda x: x.index_select(dim, chosen),
        f"gather({dim}, {inside})": lambda x: x.gather(dim, inside),
        "take": lambda x: x.take(chosen),
        "masked_select": lambda x: x.masked_select(x != 0),
        "x[x != 0]": lambda x: x[x != 0],
        "nonzero": lambda x: x.nonzero(),
        f"index_add({dim}, {chosen})": lambda x: x.index_add(dim, chosen, x.index_select(dim, chosen)),
        f"index_fill({dim}, {chosen})": lambda x: x.index_fill(dim, chosen, 1),
        f"scatter({dim}, {inside})": lambda x: x.scatter(dim, inside, 1),
        f"take_along_dim({dim})": lambda x: torch.take_along_dim(x, inside, dim),
        f"sort({dim})": lambda x: x.sort(dim, stable=True),
    }
    name = draw(st.sampled_from(list(steps)))
    return Step(name, steps[name])


@st.composite
def assignment(draw, shape, dtype) -> Step:
    """``x[key] = value`` where places do not repeat; the value is a number or broadcast."""
    key = draw(keys(shape))
    target = torch.zeros(shape)[key]

    def assign(x: Any, value: Any) -> Any:
        x = x.clone()
        x[key] = value
        return x

    lists = [k for k in key if isinstance(k, torch.Tensor) and k.dtype != torch.bool]
    if draw(st.booleans()) or lists:
        number = draw(st.sampled_from([0, 1, True, 2]))
        return Step(f"x[{key}] = {number}", lambda x: assign(x, number))
    wide = [draw(st.sampled_from([size, 1])) for size in target.shape]
    drawn = draw(
        tensors(tuple(wide[draw(st.integers(0, len(wide))) :] if draw(st.booleans()) else wide), dtype)
    )
    return Step(f"x[{key}] = other", assign, [drawn])


@st.composite
def product(draw, shape, dtype) -> Step:
    """A member of the matmul family with another tensor that fits."""
    rank = len(shape)
    size = draw(st.sampled_from(SIZES))
    inner = shape[-1] if rank else 1
    batch = [s if draw(st.booleans()) else 1 for s in shape[:-2]]
    options: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
        "x @ vector": (lambda x, y: x @ y, [(inner,)]),
        "x @ matrix": (lambda x, y: x @ y, [(inner, size)]),
        "x @ batch": (lambda x, y: x @ y, [(*batch, inner, size)]),
        "linear": (F.linear, [(size, inner)]),
        "linear with bias": (F.linear, [(size, inner), (size,)]),
        "einsum": (lambda x, y: torch.einsum("...i,ij->...j", x, y), [(inner, size)]),
        "tensordot": (lambda x, y: torch.tensordot(x, y, 1), [(inner, size)]),
        "inner": (torch.inner, [(size, inner)]),
        "outer": (lambda x, y: torch.outer(x.flatten(), y), [(size,)]),
    }
    if rank >= 2:
        options["matrix @ x"] = (lambda x, y: y @ x, [(size, shape[-2])])
        options["vector @ x"] = (lambda x, y: y @ x, [(shape[-2],)])
        options["x @ x.mT"] = (lambda x: x @ x.mT, [])
    if rank == 2:
        options["mm"] = (torch.mm, [(inner, size)])
        options["mv"] = (torch.mv, [(inner,)])
        options["addmm"] = (lambda x, y, z: torch.addmm(z, x, y, beta=2), [(inner, size), (size,)])
        options["addmm sparse"] = (lambda x, y, z: torch.addmm(x, y, z), [(shape[0], size), (size, inner)])
        options["chain"] = (lambda x, y: torch.linalg.multi_dot([x, y, y.mT]), [(inner, size)])
    if rank == 3:
        options["bmm"] = (torch.bmm, [(shape[0], inner, size)])
        options["baddbmm"] = (lambda x, y, z: torch.baddbmm(z, x, y), [(shape[0], inner, size), (1, 1, size)])
    if rank == 1:
        options["dot"] = (torch.dot, [(inner,)])
        options["vdot"] = (torch.vdot, [(inner,)])
    name = draw(st.sampled_from(list(options)))
    call, wanted = options[name]
    return Step(name, call, [draw(tensors(other, dtype)) for other in wanted])


FAMILIES = [unary, binary, reduction, rearrangement, joining, indexing, assignment, product]


@st.composite
def shapes(draw) -> tuple[int, ...]:
    found = [draw(st.sampled_from(SIZES)) for _ in range(draw(st.integers(0, 4)))]
    while math.prod(found) > MOST:
        found[found.index(max(found))] = 2
    return tuple(found)
