"""Index notation as ``evaluate`` takes it: ``D[i,j] = A[i,k] * B[k,j] + C[i,j]``.

    statement   :=  target ("=" | "+=") comparison
    comparison  :=  sum [("<" | "<=" | ">" | ">=" | "==" | "!=") sum]
    sum         :=  product (("+" | "-") product)*
    product     :=  unary (("*" | "/") unary)*
    unary       :=  ("+" | "-")* atom
    atom        :=  number | name | name "[" names "]" | function "(" arguments ")" | "(" comparison ")"

A reduction names its indices first: ``max(j, A[i,j])``. Every other index that is not on the left is summed:
each term of a sum on its own, and inside a term around the smallest part that holds all uses of the index.

    y[i] = a * A[i,k] * x[k] + exp(B[i,k])   ->   sum(k, a * A[i,k] * x[k]) + exp(sum(k_1, B[i,k_1]))

An index that is bound twice, or bound and also used outside, gets a fresh name, as ``k_1`` here: in the tree
that is returned every ``Reduce`` has indices of its own, and no index shares its name with a tensor.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import NoReturn

from scorch._src.dataclass import dataclass
from scorch._src.loops.operators import OPERATORS, REDUCTIONS
from scorch._src.notation.nodes import Access, Assign, Expr, Literal, Op, Reduce
from scorch._src.notation.trees import children, free_indices, with_children, with_unique_binders
from scorch.errors import NotationError, counted, kind_of

_BY_TORCH = "use {torch} on the tensor or the result; inside scorch.compile, that is one kernel too"
MISSING_FUNCTIONS: Mapping[str, str] = {  # that people try, and what to write instead
    **{name: _BY_TORCH.format(torch=f"torch.sparse.{name}(S, 1)") for name in ("softmax", "log_softmax")},
    **{
        name: _BY_TORCH.format(torch=f"torch.nn.functional.{name}(S)")
        for name in ("gelu", "silu", "elu", "selu", "leaky_relu", "softplus")
    },
    **{
        name: f"use torch.{name}(S, 1) on the tensor or the result"
        for name in ("logsumexp", "std", "var", "median", "argmax", "argmin", "cumsum", "cumprod")
    },
    **dict.fromkeys(("topk", "sort"), "use scorch.topk_sparse(S, 2), torch.topk or torch.sort"),
    "mean": "divide a sum by the size of the index, as in sum(j, A[i,j]) / 3",
    "norm": "write sqrt(sum(j, square(A[i,j])))",
    "count_nonzero": "write sum(j, A[i,j] != 0)",
    **dict.fromkeys(("matmul", "mm", "bmm", "dot"), "write A[i,k] * B[k,j]: k is summed over"),
    **dict.fromkeys(("pow", "power"), "write square(A[i,j]), or exp(2 * log(A[i,j]))"),
    "negative": "write -A[i,j]",
    "reciprocal": "write 1 / A[i,j]",
    "rsqrt": "write 1 / sqrt(A[i,j])",
    **dict.fromkeys(("clamp", "clip"), "write minimum(maximum(A[i,j], 0), 1)"),
}
CONSTANTS: Mapping[str, int | float | bool] = {"inf": math.inf, "nan": math.nan, "True": True, "False": False}
BINARY = {row.symbol: row.name for row in OPERATORS.values() if row.symbol and row.arity == 2}
LONG_CHAIN, GROUP = 32, 8  # a chain of more links becomes a tree of groups of so many
MAX_NESTED_LEVELS = 100  # levels of a tree
MAX_NAMED_TENSORS = 1024  # tensors named in an expression
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")

_INSTEAD = {
    "@": "'@' is not supported; a matrix product names its indices: C[i,j] = A[i,k] * B[k,j]",
    "**": "'**' is not supported; use square(x) for x ** 2, sqrt(x) for x ** 0.5, exp(y * log(x)) for x ** y",
    "^": "'^' is not supported; write square(x) for x to the power of 2 and exp(y * log(x)) for other powers",
    "//": "'//' is not supported; write '/' to divide",
    "%": "'%' is not supported; compute remainders before the expression",
    "&": "'&' is not supported; multiply conditions instead: (x > 0) * (y > 0)",
    "|": "'|' is not supported; write maximum(x > 0, y > 0)",
    ";": "expected one statement; call evaluate once for each",
    "...": "'...' is not supported here; name every index, or use einsum",
    ".": "'.' is not supported; write relu(x) for torch.relu(x), and A[j,i] for A.T",
    "?": "'?' is not supported; use where(condition, x, y)",
    "if": "'if' is not supported; use where(condition, x, y)",
    "and": "'and' is not supported; multiply conditions instead: (x > 0) * (y > 0)",
    "or": "'or' is not supported; write maximum(x > 0, y > 0)",
    ":": "slices are not supported; slice the tensor before the expression and name its indices",
}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)"
    r"|(?P<symbol>\.\.\.|\*\*|//|\+=|<=|>=|==|!=|.))"
)


def is_function(name: str) -> bool:
    """Whether an operator is written by its name and not by a symbol."""
    return name in OPERATORS and OPERATORS[name].symbol is None


@dataclass(frozen=True)
class Statement:
    """What ``evaluate`` computes; ``+=`` has the target itself as first term of the value.

    ``sampled_at``: the factor whose entries the result may have, also where it is zero at them.
    """

    assign: Assign
    accumulate: bool = False
    sampled_at: str = ""


def parse(text: str) -> Statement:
    """Read one assignment in index notation.

    >>> from scorch._src.notation.show import show
    >>> show(parse("D[i,j] = A[i,k] * B[k,j] + C[i,j]").assign)
    'D[i,j] = sum(k, A[i,k] * B[k,j]) + C[i,j]'
    """
    if not isinstance(text, str):
        raise NotationError(
            f"an index expression must be a string such as 'y[i] = A[i,j] * x[j]', but got {kind_of(text)}"
        )
    return _parse(text)


@lru_cache(maxsize=1024)
def _parse(text: str) -> Statement:
    try:
        return _Parser(text).statement()
    except RecursionError:
        raise NotationError(
            f"the expression nests more than {MAX_NESTED_LEVELS} parentheses, calls or signs; "
            "compute parts of it first"
        ) from None


@dataclass(frozen=True)
class _Token:
    kind: str  # number, name, symbol or end
    text: str
    at: int


class _Parser:
    """Recursive descent; one method for each rule of the grammar above."""

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split())
        self.tokens = self.tokenize()
        self.next = 0
        self.tensors: dict[str, _Token] = {}  # where each name first stands
        self.indices: dict[str, _Token] = {}
        self.numbers: dict[str, _Token] = {}  # names without brackets on the right

    def tokenize(self) -> list[_Token]:
        tokens = []
        for match in _TOKEN.finditer(self.text):
            kind = match.lastgroup or ""
            tokens.append(_Token(kind, match[kind], match.start(kind)))
        return [*tokens, _Token("end", "", len(self.text))]

    # Moving along the tokens.

    @property
    def token(self) -> _Token:
        return self.tokens[self.next]

    def take(self, *texts: str) -> _Token | None:
        """The current token if it is one of these symbols, and on to the next one."""
        token = self.token
        if token.kind != "symbol" or token.text not in texts:
            return None
        self.next += 1
        return token

    def fail(self, message: str, token: _Token | None = None) -> NoReturn:
        at = (token or self.token).at
        raise NotationError(f"{message}\n    {self.text}\n    {' ' * at}^")

    def expected(self, what: str) -> NoReturn:
        token = self.token
        if token.text in _INSTEAD:
            self.fail(_INSTEAD[token.text])
        self.fail(f"expected {what} but found {repr(token.text) if token.text else 'the end'}")

    # The grammar.

    def statement(self) -> Statement:
        if not self.text:
            raise NotationError("the expression is empty; write for example 'y[i] = A[i,j] * x[j]'")
        if self.token.kind != "name":
            self.expected("the name of the result")
        name = self.token
        self.next += 1
        indices = self.subscript(name)
        target = self.access(name, [index.text for index in indices])
        self.check_distinct(indices, "appears twice in the result; use two names")
        accumulate = self.token.text == "+="
        if not self.take("=", "+="):
            if self.token.text == "(":
                self.fail(f"write the indices of {name.text!r} in brackets: {name.text}[i,j]")
            has_result = any(token.text in ("=", "+=", "==") for token in self.tokens)
            if "->" in self.text:
                self.fail("this is an einsum equation; pass it to scorch.einsum")
            if self.token.kind != "end" and not has_result:
                self.fail("the result is missing; begin with it, as in 'y[i] = A[i,j] * x[j]'")
            self.expected(f"'=' or '+=' after the result {name.text!r}")
        if self.token.kind == "end":
            self.fail("the right-hand side is empty; write what to compute")
        value = self.comparison()
        check_size(value)
        if self.token.text == "=":
            self.fail("a statement can have only one '='; write '==' to compare")
        if self.token.kind in ("name", "number") and self.token.text not in _INSTEAD:
            self.fail(f"expected an operator before {self.token.text!r}; write '*' for a product")
        if self.token.kind != "end":
            self.expected("an operator")
        self.check_names_differ()
        free = free_indices(value)
        for index in indices:
            if index.text not in free and not accumulate:
                self.fail(
                    f"index {index.text!r} of the result does not occur on the right-hand side outside "
                    "reductions over it, so its size is unknown; use it there or drop it",
                    index,
                )
        value = sum_implicitly(value, tuple(index for index in free if index not in target.indices))
        value = with_unique_binders(value, target.indices, {*self.tensors, *self.indices})
        if accumulate:
            value = Op("add", (target, value))
        return Statement(Assign(target, value), accumulate)

    def check_distinct(self, indices: list[_Token], trouble: str) -> None:
        for n, index in enumerate(indices):
            if index.text in (earlier.text for earlier in indices[:n]):
                self.fail(f"index {index.text!r} {trouble}", index)

    def check_names_differ(self) -> None:
        for text, token in self.indices.items():
            if text in self.numbers:
                self.fail(
                    f"{text!r} is an index, which has no value; to compute with it, pass a tensor such as "
                    f"torch.arange(n) under another name and write, say, position[{text}]",
                    self.numbers[text],
                )
            if text in self.tensors:
                self.fail(f"{text!r} is a tensor in one place and an index in another; rename one", token)

    def comparison(self) -> Expr:
        left = self.sum()
        if sign := self.take(*COMPARISONS):
            left = Op(BINARY[sign.text], (left, self.sum()))
            if self.token.text in COMPARISONS:
                self.fail("comparisons do not chain; write (x < y) * (y < z)")
        return left

    def sum(self) -> Expr:
        return self.chain(self.product, "+", "-")

    def product(self) -> Expr:
        return self.chain(self.unary, "*", "/")

    def chain(self, part: Callable[[], Expr], *signs: str) -> Expr:
        """Parts joined by operators that are read from the left; a long chain becomes a tree of groups."""
        links: list[tuple[str, Expr]] = [("", part())]
        while sign := self.take(*signs):
            links.append((BINARY[sign.text], part()))
        return grouped(links)

    def unary(self) -> Expr:
        if self.take("+"):
            return self.unary()
        if not self.take("-"):
            return self.atom()
        # A minus directly before a number belongs to the number.
        is_number = self.token.kind == "number" or self.token.text in ("inf", "nan")
        value = self.unary()
        if is_number and isinstance(value, Literal):
            return Literal(-value.value)
        return Op("neg", (value,))

    def atom(self) -> Expr:
        token = self.token
        if token.kind == "number":
            self.next += 1
            return self.number(token)
        if token.kind == "name":
            self.next += 1
            return self.named(token)
        if self.take("("):
            inner = self.comparison()
            if not self.take(")"):
                self.expected("')'")
            return inner
        self.expected("a tensor, a number or '('")

    def number(self, token: _Token) -> Literal:
        if not token.text.isdigit():
            return Literal(float(token.text))
        if len(token.text) > 19 or int(token.text) >= 2**63:
            self.fail("the number does not fit in 64 bits; write it with an exponent or a point", token)
        return Literal(int(token.text))

    def named(self, name: _Token) -> Expr:
        """What a name begins: a constant, a call, or a tensor with or without indices."""
        if name.text in CONSTANTS:
            return Literal(CONSTANTS[name.text])
        if self.take("("):
            return self.call(name)
        if self.token.text != "[":
            self.numbers.setdefault(name.text, name)
        return self.access(name, [index.text for index in self.subscript(name)])

    def access(self, name: _Token, indices: list[str]) -> Access:
        self.check_name(name)
        self.tensors.setdefault(name.text, name)
        return Access(name.text, tuple(indices))

    def subscript(self, name: _Token) -> list[_Token]:
        """The indices in brackets after a tensor's name; none without brackets."""
        indices: list[_Token] = []
        if not self.take("["):
            return indices
        while not self.take("]"):
            if indices and not self.take(","):
                if self.token.text in ("+", "-"):
                    self.fail(
                        f"an index must be a name, not a sum; select from {name.text!r} first, as in "
                        f"{name.text}[1:], or use torch.roll"
                    )
                self.expected(f"',' or ']' after the indices of {name.text!r}")
            token = self.token
            if token.kind == "number" or token.text == "-":
                self.fail(f"an index must be a name, not a number; select from {name.text!r} first")
            if token.kind != "name":
                self.expected(f"an index of {name.text!r}")
            self.check_name(token)
            self.indices.setdefault(token.text, token)
            indices.append(token)
            self.next += 1
        if self.token.text == "[":
            self.fail(f"write all indices of {name.text!r} in one pair of brackets: {name.text}[i,j]")
        return indices

    def check_name(self, name: _Token) -> None:
        if name.text in CONSTANTS or name.text in REDUCTIONS or is_function(name.text):
            kind = "constant" if name.text in CONSTANTS else "function"
            self.fail(f"{name.text!r} is a {kind}; rename the tensor or index", name)

    def call(self, name: _Token) -> Expr:
        if name.text in REDUCTIONS:
            return self.reduction(name)
        if not is_function(name.text):
            self.unknown_function(name)
        arguments: list[Expr] = []
        while not self.take(")"):
            if arguments and not self.take(","):
                self.expected(f"',' or ')' after the arguments of {name.text!r}")
            arguments.append(self.comparison())
        arity = OPERATORS[name.text].arity
        if len(arguments) != arity:
            self.fail(f"{name.text!r} expected {counted(arity, 'argument')}, but got {len(arguments)}", name)
        return Op(name.text, tuple(arguments))

    def reduction(self, name: _Token) -> Expr:
        """``max(j, k, body)``: names followed by a comma are indices, what comes last is reduced."""
        indices: list[_Token] = []
        while self.token.kind == "name" and self.tokens[self.next + 1].text == ",":
            indices.append(self.token)
            self.next += 2
        example = f"{name.text}(j, A[i,j])"
        pairwise = {"max": "maximum", "min": "minimum"}.get(name.text)
        cure = f"use {pairwise}(x, y) for the {name.text} of two values" if pairwise else f"write {example}"
        start = self.token
        if start.text == ")":
            self.fail(f"{name.text!r} expected indices and then the expression to reduce: {example}", name)
        body = self.comparison()
        if self.token.text == ",":
            self.fail(f"only the last argument of {name.text!r} is not an index: {example}; {cure}", start)
        if not self.take(")"):
            self.expected(f"')' after the arguments of {name.text!r}")
        if not indices:
            self.fail(f"{name.text!r} expected the indices before the expression to reduce: {example}", name)
        for index in indices:
            if index.text not in free_indices(body):
                self.fail(f"{index.text!r} is not an index of what {name.text!r} reduces; {cure}", index)
        self.check_distinct(indices, "is named twice")
        return Reduce(name.text, tuple(index.text for index in indices), body)

    def unknown_function(self, name: _Token) -> NoReturn:
        if OPERATORS.get(name.text):
            self.fail(f"write {OPERATORS[name.text].symbol!r} instead of {name.text!r}", name)
        instead = MISSING_FUNCTIONS.get(name.text)
        if instead is not None:
            self.fail(f"there is no function {name.text!r}; {instead}", name)
        known = (*filter(is_function, OPERATORS), *REDUCTIONS)
        close = difflib.get_close_matches(name.text.lower(), known, n=1)
        guess = f"did you mean {close[0]!r}?" if close else f"a tensor takes brackets: {name.text}[i,j]."
        self.fail(f"unknown function {name.text!r}; {guess} Choose from: {', '.join(known)}", name)


def grouped(links: Sequence[tuple[str, Expr]]) -> Expr:
    """``a + b - c ...`` as a tree; each part comes with the operator before it, the first one with none.

    It is read from the left. A long chain becomes a chain of groups, so that no tree is deep:

    a + b - c ... - x - y + z ...   ->   (a + b - c ...) - (x + y - z ...) ...

    Quotients are left as they are.
    """
    while len(links) > LONG_CHAIN:
        groups: list[list[tuple[str, Expr]]] = []
        for name, part in links:
            inside = _INSIDE.get((groups[-1][0][0], name)) if groups else None
            if inside is not None and len(groups[-1]) < GROUP:
                groups[-1].append((inside, part))
            else:
                groups.append([(name, part)])
        if len(groups) == len(links):
            break
        links = [(group[0][0], _from_left(group)) for group in groups]
    return _from_left(links)


# What stands before a part inside a group, by what stands before the group and stood before the part.
_INSIDE = {
    ("", "add"): "add",
    ("", "sub"): "sub",
    ("add", "add"): "add",
    ("add", "sub"): "sub",
    ("sub", "add"): "sub",
    ("sub", "sub"): "add",
    ("", "mul"): "mul",
    ("mul", "mul"): "mul",
}


def _from_left(links: Sequence[tuple[str, Expr]]) -> Expr:
    return reduce(lambda left, link: Op(link[0], (left, link[1])), links[1:], links[0][1])


def check_size(value: Expr) -> None:
    """Refuse what is too large to plan: passes walk trees by recursion, and every statement takes time."""
    level, depth, count = [value], 0, 0
    while level:
        depth += 1
        count += sum(isinstance(node, Access) for node in level)
        level = [part for node in level for part in children(node)]
    for number, most, excess in (
        (depth, MAX_NESTED_LEVELS, f"nests {depth} operators in each other"),
        (count, MAX_NAMED_TENSORS, f"names {count:,} tensors"),
    ):
        if number > most:
            raise NotationError(
                f"the expression {excess}, but at most {most:,} are supported; compute parts of it first"
            )


def sum_implicitly(expr: Expr, indices: tuple[str, ...]) -> Expr:
    """Sum over ``indices``, each term of a sum on its own and as far inside as all uses of an index allow.

    a[i] * A[i,k] + A[i,k] * x[k]   ->   a[i] * sum(k, A[i,k]) + sum(k, A[i,k] * x[k])
    """
    free = free_indices(expr)
    indices = tuple(index for index in indices if index in free)
    if not indices:
        return expr
    parts = children(expr)
    if isinstance(expr, Op) and expr.name in ("add", "sub", "neg"):
        return with_children(expr, tuple(sum_implicitly(part, indices) for part in parts))
    used = [free_indices(part) for part in parts]
    inside = tuple(index for index in indices if sum(index in own for own in used) == 1)
    here = tuple(index for index in indices if index not in inside)
    expr = with_children(expr, tuple(sum_implicitly(part, inside) for part in parts))
    return Reduce("sum", here, expr) if here else expr
