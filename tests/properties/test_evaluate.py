"""Any index expression over any formats equals an evaluation of it on dense tensors.

The evaluator here shares nothing with Scorch: it gives every value one dimension per index and broadcasts.
It computes floats in float64 and integers in their own dtype, and asks torch for the dtype of each operation.
Beside each value it keeps a bound of the rounding that float32 may bring: the tolerance of the comparison.

What is drawn stays away from points where rounding decides (``exp(..) > ..``, ``log`` of a difference) and
from the one place where Scorch differs from torch on purpose: a zero that is not stored times or divided by
anything is zero, also where a dense factor is infinite or a dense divisor zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import scorch
from properties.drawing import SIZES, Drawn, formats, tensors, to_dense
from scorch import Format, SparseTensor
from validity import check_storage

WORKERS = 8
LETTERS = "ijkl"
UNARY = ["neg", "relu", "exp", "log", "sqrt", "abs", "tanh", "sigmoid", "square", "sign"]
BINARY = ["+", "-", "*", "*", "/", "maximum", "minimum"]
COMPARISONS = ["<", "<=", ">", ">=", "==", "!="]
REDUCTIONS = ["sum", "sum", "max", "min", "prod", "any"]
KINDS = ["binary"] * 5 + ["unary", "unary", "reduce", "reduce", "comparison", "where", "tensor"]
SYMBOLS = ("+", "-", "*", "/", *COMPARISONS)
LARGEST = 2.0**18  # what is exact stays exact in float32


# Trees -----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Node:
    """``op`` is an operator, ``reduce``, ``tensor`` or ``number``."""

    op: str
    args: tuple[Node, ...] = ()
    name: str = ""  # of the tensor or the reduction
    indices: tuple[str, ...] = ()
    number: float | int = 0
    origin: Node | None = None  # the drawn node, where this one was made by adding sums

    @property
    def free(self) -> set[str]:
        inner = set().union(*(arg.free for arg in self.args))
        return inner - set(self.indices) if self.op == "reduce" else inner | set(self.indices)

    def text(self) -> str:
        parts = [arg.text() for arg in self.args]
        match self.op:
            case "tensor":
                return f"{self.name}[{','.join(self.indices)}]" if self.indices else self.name
            case "number":
                return str(self.number)
            case "reduce":
                return f"{self.name}({', '.join((*self.indices, parts[0]))})"
            case "neg":
                return f"(-{parts[0]})"
            case _ if self.op in SYMBOLS:
                return f"({parts[0]} {self.op} {parts[1]})"
        return f"{self.op}({', '.join(parts)})"

    def walk(self) -> Iterator[Node]:
        yield self
        for arg in self.args:
            yield from arg.walk()


def with_sums(node: Node, wanted: set[str]) -> Node:
    """Sum the indices ``wanted``: every term by itself, inside a term around all uses of an index."""
    wanted = wanted & node.free
    made = Node(node.op, node.args, node.name, node.indices, node.number, node)
    if not wanted:
        made.args = tuple(with_sums(arg, set()) for arg in node.args)
        return made
    if node.op in ("+", "-", "neg"):
        made.args = tuple(with_sums(arg, wanted) for arg in node.args)
        return made
    inside = {index for index in wanted if sum(index in arg.free for arg in node.args) == 1}
    made.args = tuple(with_sums(arg, inside) for arg in node.args)
    here = tuple(sorted(wanted - inside))
    return Node("reduce", (made,), "sum", here, origin=node) if here else made


# The evaluator ---------------------------------------------------------------------------------------


class AwkwardError(Exception):
    """Rounding, or the convention about zeros, would decide here; ``node`` is to blame."""

    def __init__(self, node: Node) -> None:
        self.node = node


@dataclass
class Value:
    """``wide`` has a dimension for each letter; ``sample`` has the dtype and rank that torch promotes by."""

    wide: torch.Tensor
    sample: torch.Tensor | float
    error: float = 0.0
    exact: bool = True

    @property
    def dtype(self) -> torch.dtype:
        return torch.result_type(self.sample, self.sample)

    @property
    def most(self) -> float:
        wide = self.wide if self.wide.is_complex() else self.wide.to(torch.float64)
        finite = wide[torch.isfinite(wide)].abs()
        return float(finite.max()) if finite.numel() else 0.0

    @property
    def is_finite(self) -> bool:
        return bool(torch.isfinite(self.wide).all())


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else torch.complex128 if dtype.is_complex else dtype


def epsilon(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


class Evaluator:
    def __init__(self, drawn: dict[str, Drawn], letters: str) -> None:
        self.drawn = drawn
        self.letters = letters

    def value(self, node: Node) -> Value:
        args = [self.value(arg) for arg in node.args]
        match node.op:
            case "tensor":
                return self.access(node)
            case "number":
                wide = torch.tensor(
                    node.number, dtype=torch.float64 if isinstance(node.number, float) else None
                )
                return Value(wide.reshape((1,) * len(self.letters)), node.number)
            case "reduce":
                return self.reduce(node, args[0])
        found = self.apply(node, args)
        if not found.wide.isnan().all() and found.most > LARGEST:
            raise AwkwardError(node)
        return found

    def access(self, node: Node) -> Value:
        dense = self.drawn[node.name].dense
        used = "".join(sorted(set(node.indices)))
        found = torch.einsum(f"{''.join(node.indices)}->{used}", dense.to(wide_for_einsum(dense.dtype)))
        found = found.to(wide_dtype(dense.dtype))
        shape = [found.shape[used.index(letter)] if letter in used else 1 for letter in self.letters]
        sample = torch.zeros((1,) * bool(node.indices), dtype=dense.dtype)
        return Value(found.reshape(shape), sample)

    def apply(self, node: Node, args: list[Value]) -> Value:
        dtype = self.dtype_of(node, args)
        sample = dtype_sample(dtype, args)
        if node.op != "where":
            joined = wide_dtype(joined_dtype(node, args))
            values = [arg.wide.to(joined) for arg in args]
        else:
            values = [args[0].wide != 0, *(arg.wide.to(wide_dtype(dtype)) for arg in args[1:])]
        with torch.no_grad():
            wide = COMPUTE[node.op](*values)
        found = Value(wide.to(wide_dtype(dtype)), sample)
        self.check_point(node, args, found)
        found.exact = all(arg.exact for arg in args) and (
            node.op not in ("/", "exp", "log", "sqrt", "tanh", "sigmoid")
            and not (node.op == "abs" and dtype.is_complex)
        )
        found.error = self.error(node, args, found, dtype)
        return found

    def dtype_of(self, node: Node, args: list[Value]) -> torch.dtype:
        samples = [arg.sample for arg in args]
        kinds = [arg.dtype for arg in args]
        if node.op in COMPARISONS:
            if node.op not in ("==", "!=") and any(kind.is_complex for kind in kinds):
                raise AwkwardError(node)
            return torch.bool
        if node.op == "where":
            return torch.result_type(samples[1], samples[2])
        joined = torch.result_type(samples[0], samples[-1])
        is_whole = not joined.is_floating_point and not joined.is_complex
        if joined == torch.bool and node.op in ("-", "neg", "relu", "abs", "square", "sign"):
            raise AwkwardError(node)  # torch has none of these for bool, or not for all layouts
        if joined.is_complex and node.op not in ("+", "-", "*", "/", "neg", "abs", "exp", "square"):
            raise AwkwardError(node)
        if node.op in ("/", "exp", "log", "sqrt", "tanh", "sigmoid") and is_whole:
            return torch.get_default_dtype()
        if node.op == "abs" and joined.is_complex:
            return torch.float32 if joined == torch.complex64 else torch.float64
        return joined

    def check_point(self, node: Node, args: list[Value], found: Value) -> None:
        """Refuse what rounding or the convention about zeros would decide."""
        if node.op in COMPARISONS and not all(arg.exact and arg.is_finite for arg in args):
            raise AwkwardError(node)
        if node.op == "where" and not (args[0].exact and args[0].is_finite):
            raise AwkwardError(node)
        if node.op in ("*", "/", "square", "sign") and not all(arg.is_finite for arg in args):
            raise AwkwardError(node)
        if node.op == "sign" and not args[0].exact:
            raise AwkwardError(node)
        if found.wide.is_complex() and not all(arg.is_finite for arg in args):
            raise AwkwardError(node)
        if node.op == "exp" and args[0].most > 10:
            raise AwkwardError(node)
        near = (
            (args[-1].wide.to(torch.complex128).abs() < 1e-2)
            if node.op in ("/", "log", "sqrt")
            else torch.zeros(())
        )
        if node.op in ("log", "sqrt") and bool(near.any()) and not args[0].exact:
            raise AwkwardError(node)
        if node.op == "/" and bool(near.any()):
            over, under = node.args
            is_plain = under.op == "tensor" and (
                self.is_sparse(under) or not any(map(self.is_sparse, over.walk()))
            )
            if not is_plain or found.wide.is_complex():
                raise AwkwardError(node)

    def is_sparse(self, node: Node) -> bool:
        return node.op == "tensor" and self.drawn[node.name].format is not None

    def error(self, node: Node, args: list[Value], found: Value, dtype: torch.dtype) -> float:
        """At most how far rounding may have moved the result."""
        worst = max((arg.error for arg in args), default=0.0)
        own = 0.0 if found.exact else 4 * epsilon(dtype) * max(1.0, found.most)
        match node.op:
            case "+" | "-":
                return sum(arg.error for arg in args) + own
            case "*":
                return args[0].most * args[1].error + args[1].most * args[0].error + own
            case "/":
                least = smallest(args[1].wide)
                return (args[0].error + args[0].most / least * args[1].error) / least + own
            case "exp":
                return max(1.0, found.most) * worst * 2 + own
            case "log":
                return worst / smallest(args[0].wide) + own
            case "sqrt":
                return worst / smallest(args[0].wide) ** 0.5 + own
            case "square":
                return 2 * args[0].most * worst + own
        return worst + own

    def reduce(self, node: Node, body: Value) -> Value:
        dims = [self.letters.index(index) for index in node.indices]
        count = 1
        for dim in dims:
            count *= body.wide.shape[dim]
        if not body.exact and not body.is_finite and node.name == "prod":
            raise AwkwardError(node)
        if node.name in ("max", "min") and (body.dtype.is_complex or count == 0):
            raise AwkwardError(node)
        if node.name in ("any", "prod") and not (body.is_finite and body.exact):
            raise AwkwardError(node)
        dtype = body.dtype
        if node.name in ("sum", "prod") and not dtype.is_floating_point and not dtype.is_complex:
            dtype = dtype if is_product_of_tensors(node.args[0]) else torch.int64
        wide = body.wide
        match node.name:
            case "any":
                wide, dtype = (wide != 0).any(dim=dims, keepdim=True), torch.bool
            case "max":
                wide = wide.amax(dims, keepdim=True)
            case "min":
                wide = wide.amin(dims, keepdim=True)
            case "sum" if dtype == torch.bool:
                wide = wide.any(dim=dims, keepdim=True)
            case "sum":
                wide = wide.sum(dims, keepdim=True, dtype=wide_dtype(dtype))
            case "prod":
                if dtype.is_floating_point or dtype.is_complex:  # infinity times zero is not a number
                    passing = wide.abs().to(torch.float64).clamp(min=1.0).log().sum(dims)
                    if passing.numel() and float(passing.max()) > math.log(LARGEST):
                        raise AwkwardError(node)
                for dim in dims:
                    wide = wide.prod(dim, keepdim=True, dtype=wide_dtype(dtype))
        found = Value(wide, torch.zeros((1,) * bool(node.free), dtype=dtype), body.error, body.exact)
        if node.name == "sum":
            found.error = count * body.error
            if not body.exact:
                found.error += 4 * epsilon(dtype) * count * max(1.0, body.most) * max(1, count)
        if found.most > LARGEST and not (node.name == "prod" and dtype == torch.int64):
            raise AwkwardError(node)
        return found


def wide_for_einsum(dtype: torch.dtype) -> torch.dtype:
    return torch.int64 if dtype == torch.bool else dtype


def dtype_sample(dtype: torch.dtype, args: list[Value]) -> torch.Tensor | float:
    """A value of ``dtype`` with the rank of the highest argument: tensor, scalar or number."""
    is_tensor = any(isinstance(arg.sample, torch.Tensor) and arg.sample.dim() for arg in args)
    return torch.zeros((1,) * is_tensor, dtype=dtype)


def joined_dtype(node: Node, args: list[Value]) -> torch.dtype:
    joined = torch.result_type(args[0].sample, args[-1].sample)
    if node.op in ("/", "exp", "log", "sqrt", "tanh", "sigmoid"):
        return torch.get_default_dtype() if not joined.is_floating_point and not joined.is_complex else joined
    return joined


def smallest(value: torch.Tensor) -> float:
    """The least magnitude that is not zero; where a divisor is zero the result is not finite anyway."""
    found = value.to(torch.complex128).abs()
    found = found[found > 0]
    return float(found.min()) if found.numel() else 1.0


def is_product_of_tensors(node: Node) -> bool:
    """What ``torch.einsum`` could be given; its dtype is then that of the product."""
    return node.op == "*" and all(a.op in ("tensor", "reduce") or is_product_of_tensors(a) for a in node.args)


COMPUTE = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "/": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "where": torch.where,
    "neg": torch.neg,
    "relu": lambda x: torch.where(x < 0, torch.zeros_like(x), x),
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "abs": torch.abs,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "square": torch.square,
    "sign": torch.sign,
    "<": torch.lt,
    "<=": torch.le,
    ">": torch.gt,
    ">=": torch.ge,
    "==": torch.eq,
    "!=": torch.ne,
}


# Drawing ---------------------------------------------------------------------------------------------


@dataclass
class Case:
    text: str
    target: tuple[str, ...]
    drawn: dict[str, Drawn]
    requested: Format | None
    accumulates: str | None  # the tensor that += adds to
    truth: torch.Tensor = field(repr=False)
    error: float = field(repr=False)
    epsilon: float = field(repr=False)

    def __repr__(self) -> str:
        lines = [f"{self.text}    format={self.requested!r}"]
        return "\n".join([*lines, *(f"{name}: {drawn!r}" for name, drawn in self.drawn.items())])


REALS = [torch.float64, torch.float32]
OTHERS = [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128]


@st.composite
def cases(draw) -> Case:
    random = Random(draw(st.integers(0, 2**32)))  # for the expression: hypothesis repeats itself too much
    letters = LETTERS[: random.choice([2, 3, 4, 3, 1])]
    sizes = draw_sizes(random, letters)
    names = random.choice([("A", "B", "C", "D"), ("A", "B", "C", "D"), ("w", "T1", "A_t", "y_stored")])
    drawn, terms = {}, {}
    first = random.choice(REALS * 3 + OTHERS)
    mixed = random.choice([False, False, True])
    for name in names[: random.choice([2, 3, 4, 1])]:
        order = random.choice([2, 2, 1, 3, 0])
        terms[name] = tuple(random.choice(letters) for _ in range(order))
        dtype = random.choice(REALS * 2 + OTHERS) if mixed else first
        drawn[name] = draw(tensors(tuple(sizes[letter] for letter in terms[name]), dtype))
    tree = draw_tree(random, draw(st.sampled_from([1, 2, 3, 4])), terms, sizes)
    evaluator = Evaluator(drawn, letters)
    added = [name for name, term in terms.items() if len(set(term)) == len(term)]
    accumulates = random.choice(added) if added and random.choice([0, 0, 0, 0, 1]) else None
    target = terms[accumulates] if accumulates else tuple(random.sample(letters, len(letters)))
    if not accumulates:
        target = target[: random.choice([2, 1, 3, 4, 0])]
    while True:
        value_node = with_sums(tree, tree.free - set(target))
        if accumulates:
            value_node = Node("+", (Node("tensor", name=accumulates, indices=target), value_node))
        try:
            value = evaluator.value(value_node)
            break
        except AwkwardError as awkward:
            bad = origin(awkward.node)
            if bad is value_node:
                accumulates = None
            else:
                tree = repaired(tree, bad)
    if not accumulates:
        target = tuple(index for index in target if index in tree.free)
    text = f"{accumulates or 'y'}[{','.join(target)}] {'+=' if accumulates else '='} {tree.text()}"
    used = {node.name for node in tree.walk() if node.op == "tensor"} | ({accumulates} - {None})
    wide = value.wide.expand([sizes[letter] if letter in target else 1 for letter in letters])
    truth = wide.permute(
        [letters.index(i) for i in target] + [n for n, i in enumerate(letters) if i not in target]
    )
    truth = truth.reshape([sizes[i] for i in target])
    dtypes = [drawn[name].dense.dtype for name in used] + [torch.get_default_dtype()]
    least = max(epsilon(dtype) for dtype in dtypes)
    return Case(
        text,
        target,
        {name: drawn[name] for name in drawn if name in used},
        draw(st.none() | formats(len(target))),
        accumulates,
        truth.to(value.dtype),
        value.error,
        least,
    )


def draw_sizes(random: Random, letters: str) -> dict[str, int]:
    if random.random() < 0.5:  # all equal, so that A[i,j] + A[j,i] is possible
        return dict.fromkeys(letters, random.choice([3, 4, 5, 2, 1, 0]))
    sizes = {letter: random.choice(SIZES) for letter in letters}
    while torch.Size(sizes.values()).numel() > 700:
        sizes[max(sizes, key=lambda letter: sizes[letter])] = 2
    return sizes


def draw_tree(random: Random, depth: int, terms: dict[str, tuple[str, ...]], sizes: dict[str, int]) -> Node:
    kind = random.choice(KINDS) if depth else "tensor"
    if kind == "tensor":
        return draw_access(random, terms, sizes)
    if kind == "unary":
        return Node(random.choice(UNARY), (draw_tree(random, depth - 1, terms, sizes),))
    if kind == "reduce":
        body = draw_tree(random, depth - 1, terms, sizes)
        chosen = [letter for letter in sorted(body.free) if random.random() < 0.5] or sorted(body.free)[:1]
        return Node("reduce", (body,), random.choice(REDUCTIONS), tuple(chosen)) if chosen else body
    if kind == "comparison":
        return Node(random.choice(COMPARISONS), draw_pair(random, depth, terms, sizes))
    if kind == "where":
        condition = draw_tree(random, depth - 1, terms, sizes)
        return Node("where", (condition, *draw_pair(random, depth, terms, sizes)))
    return Node(random.choice(BINARY), draw_pair(random, depth, terms, sizes))


def draw_pair(
    random: Random, depth: int, terms: dict[str, tuple[str, ...]], sizes: dict[str, int]
) -> tuple[Node, ...]:
    """Two trees, of which one may be a number."""
    pair = [draw_tree(random, depth - 1, terms, sizes) for _ in range(2)]
    if random.choice([0, 0, 0, 1]):
        pair[random.choice([0, 1])] = Node("number", number=random.choice([0, 1, 2, -1, 3, 0.5, 0.0]))
    return tuple(pair)


def draw_access(random: Random, terms: dict[str, tuple[str, ...]], sizes: dict[str, int]) -> Node:
    name = random.choice(sorted(terms))
    indices = terms[name]
    if random.random() < 0.5:
        same = [[other for other in sizes if sizes[other] == sizes[index]] for index in indices]
        indices = tuple(random.choice(options) for options in same)
    return Node("tensor", name=name, indices=indices)


def origin(node: Node) -> Node:
    while node.origin is not None:
        node = node.origin
    return node


def repaired(tree: Node, bad: Node) -> Node:
    """``tree`` with a harmless operation in place of ``bad``."""
    if tree is not bad:
        parts = tuple(repaired(arg, bad) for arg in tree.args)
        indices = tree.indices
        if tree.op == "reduce":  # an index may have gone with what was replaced
            indices = tuple(index for index in indices if index in parts[0].free)
            if not indices:
                return parts[0]
        return Node(tree.op, parts, tree.name, indices, tree.number)
    args = [arg for arg in bad.args if arg.op != "number"] or list(bad.args)
    if len(args) == 1 or bad.op == "+":
        return args[0]
    return Node("+", (args[0], args[1])) if args else bad


# Tests -----------------------------------------------------------------------------------------------


def check(case: Case, result: torch.Tensor) -> None:
    if isinstance(result, SparseTensor):
        check_storage(result.storage)
    wanted = case.requested
    if wanted is None and case.accumulates is not None:
        wanted = case.drawn[case.accumulates].format  # None: a dense tensor
        assert (wanted is None) == (not isinstance(result, SparseTensor))
    if wanted is not None:
        assert isinstance(result, SparseTensor) != wanted.is_dense
        assert wanted.is_dense or result.format == wanted
    found = to_dense(result)
    assert found.dtype == case.truth.dtype, f"{found.dtype} instead of {case.truth.dtype}"
    torch.testing.assert_close(
        found, case.truth, rtol=32 * case.epsilon, atol=1e-12 + 4 * case.error, equal_nan=True
    )


def run_case(case: Case) -> None:
    operands = {name: drawn.given for name, drawn in case.drawn.items()}
    copies = {name: to_dense(operand).clone() for name, operand in operands.items()}
    for _ in range(3):  # the second time by what was cached, the third by what the second one left at hand
        check(case, scorch.evaluate(case.text, format=case.requested, **operands))
    for name, copy in copies.items():
        assert torch.equal(to_dense(operands[name]), copy), f"{name} was changed"


@pytest.mark.parametrize("worker", range(WORKERS))
def test_expression_equals_dense(worker: int, cases_per_worker: int) -> None:
    @settings(
        max_examples=cases_per_worker, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
    )
    @given(cases())
    def run(case: Case) -> None:
        run_case(case)

    run()


def test_interpreter_agrees(cases_per_worker: int) -> None:
    @settings(
        max_examples=max(20, cases_per_worker // 4), deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(cases())
    def run(case: Case) -> None:
        with scorch.settings(debug=True):
            run_case(case)

    run()


def test_names_of_tensors_may_be_those_of_transposed_copies():
    A = scorch.rand(5, 6, density=0.4, format="csr", dtype=torch.float64)
    given = {"A": A, "B": A * 2, "A_t": A * 3, "B_t": A * 5}
    found = scorch.evaluate("R[j,k] = sum(i, A_t[i,j] * B[i,k] + B_t[i,k] * A[i,j])", **given)
    D = A.to_dense()
    torch.testing.assert_close(found.to_dense(), 11 * (D.T @ D))
