"""Calls on sparse tensors that are recorded instead of run, so that several become one kernel.

Inside ``scorch.compile`` a call that has a rule (``records``) gives a ``Later``: a tensor that knows its
shape and dtype, and the steps that compute it. When its numbers are asked for, by a call without a rule or
because it is returned, all steps that lead to it are joined (``compile.group``). What cannot be joined is run
call by call, as it would have been outside. A result is computed from the tensors as they were when the call
was made: before anything is changed in place, all that was recorded is computed.

What a rule says depends on the call and on what its arguments are (shapes, dtypes, formats, which of them lie
on one pattern), not on their numbers. So a compiled function keeps a tree of the calls it has made, with
what each gave; a call that was made before, after the same calls, is looked up, and so is the kernel.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from scorch._src.bounded import BoundedCache
from scorch._src.compile.group import GroupPlan, plan_group
from scorch._src.compile.lazy_tensor import (
    LATER,
    Call,
    Later,
    Recipe,
    Source,
    SparseLater,
    Value,
    computed,
    is_known_before,
    version_of,
)
from scorch._src.statements.autocast import is_autocast
from scorch._src.statements.modes import active, recorder
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.registry import entry, look_up
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import any_requires_grad, len_torch_function_stack, pop_mode_temporarily

MOST_PLANS = 64  # of what is computed at one node
MOST_NODES = 4096  # of one compiled function; then it begins anew

Rule = Callable[..., Any]
Part = tuple[Recipe, Call | None]  # a result, and the call that it is outside if that is not the recorded one
PLAIN = (torch.Tensor, torch.nn.Parameter)
FULL = 0.25  # of all places; from here on products are given to torch's BLAS, outside
_CONSTANTS = {int, float, bool, str, type(None), torch.dtype}


def records(*functions: Any) -> Callable[[Rule], Rule]:
    """Register the rule of torch functions: it returns its parts, or None for what it does not take."""

    def register(rule: Rule) -> Rule:
        for function in functions:
            entry(function).record = rule
        return rule

    return register


class Node:
    """A recorded call after those that led here: what it gives, what came next, and what was computed here.

    ``first`` are the numbers of values that had to be computed before; ``names`` and ``counter`` are those of
    all steps so far.
    """

    def __init__(self) -> None:
        self.children: dict[Any, Node] = {}
        self.parts: tuple[tuple[Recipe, Any], ...] = ()
        self.first: tuple[int, ...] = ()
        self.names: dict[tuple[int, tuple[int, ...] | None], str] = {}
        self.counter = 0
        self.plans: BoundedCache[Any, GroupPlan] = BoundedCache(MOST_PLANS)
        self.size = [0]  # nodes of the whole tree

    @property
    def is_full(self) -> bool:
        return self.size[0] >= MOST_NODES


class Recorder(TorchFunctionMode):
    """Records calls that have a rule, computes what others need, and runs those."""

    def __init__(self, root: Node) -> None:
        super().__init__()
        self.node = root
        self.items: list[Value | Source] = []  # in the order in which calls met or made them
        self.sources: dict[int, Source] = {}
        self.patterns: list[Pattern] = []
        self.numbers: dict[int, int] = {}  # of patterns, by id
        self.pending: list[weakref.ref[Later]] = []
        self.history: tuple[Any, ...] = ()  # what was computed so far
        self.early: list[int] = []
        self.groups: list[GroupPlan] = []
        self.alone: list[str] = []
        self.met = 0  # calls with sparse tensors

    def __enter__(self) -> Any:
        self.before = recorder()
        active.recorder = self
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        active.recorder = self.before
        super().__exit__(*args)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_known_before(func):
            return func(*args, **kwargs)
        rule = look_up(func).record
        if rule is not None:
            found = self.record(rule, func, args, kwargs)
            if found is not None:
                return found
        return self.run(func, args, kwargs)

    def called(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A function of Scorch's own: recorded, or run."""
        rule = look_up(func).record
        with Paused():
            found = None if rule is None else self.record(rule, func, args, kwargs)
            return self.run(func, args, kwargs) if found is None else found

    def record(self, rule: Rule, func: Any, args: Any, kwargs: dict[str, Any]) -> Later | None:
        if is_autocast():
            return None
        key = self._key(func, args, kwargs)
        node = None if key is None else self.node.children.get(key)
        if node is None:
            node = self._new_node(rule, key, args, kwargs)
        else:
            for number in node.first:
                early = self.items[number]
                assert isinstance(early, Value)
                self.source(early.tensor())
        self.node = node
        if not node.parts:
            return None
        base, args = len(self.items), tuple([a._value if type(a) in LATER else a for a in args])
        if kwargs:
            kwargs = {name: a._value if type(a) in LATER else a for name, a in kwargs.items()}
        for recipe, template in node.parts:
            call = (func, args, kwargs) if template is None else self._call(template, base, args, kwargs)
            value = Value(recipe, len(self.items), call, self)
            self.items.append(value)
        self.met += recipe.walked >= 0
        later = SparseLater(value) if recipe.is_sparse else Later(value)
        self.pending.append(weakref.ref(later))
        return later

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A call that is not recorded, once what it needs is computed."""
        if _changes(func, args, kwargs):
            self.compute(self.alive())
        args, kwargs = computed(args), computed(kwargs) if kwargs else kwargs
        if _any_sparse(args) or (kwargs and _any_sparse(kwargs)):
            self.met += 1
            self.alone.append(getattr(func, "__name__", str(func)))
        return func(*args, **kwargs)

    def alive(self) -> list[Value]:
        """What somebody may still ask for."""
        found = [ref() for ref in self.pending]
        return [later._value for later in found if later is not None and later._value.result is None]

    def close(self) -> None:
        """Let go of all tensors, unless somebody may still ask for a result."""
        if not self.alive():
            self.items.clear()
            self.sources.clear()

    # calls that were made before ---------------------------------------------------------------------

    def _key(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """All that the rule of a call depends on; None if that cannot be told.

        Tensors get their numbers here, in the order in which calls are made.
        """
        key: list[Any] = [func, torch.is_grad_enabled()]
        complete = True
        for argument in args if not kwargs else (*args, *kwargs, *kwargs.values()):
            kind = type(argument)
            if kind in LATER:
                value = argument._value
                if value.recorder is self and value.result is None:
                    key.append(value.number)
                    continue
                argument = value.tensor()
            if isinstance(argument, torch.Tensor):
                known = self.sources.get(id(argument))
                if known is not None and known.version == version_of(argument):
                    key.append(known.number)
                else:
                    key.append(self._facts(argument))
                    self.source(argument)
            elif kind in _CONSTANTS:
                key += (kind, argument)
            else:
                complete = False
        return tuple(key) if complete else None

    def _facts(self, tensor: torch.Tensor) -> Any:
        """What rules and kernels depend on of a tensor that they meet first."""
        if isinstance(tensor, SparseTensor):
            storage = tensor.storage
            pattern = storage.pattern
            number = self.numbers.get(id(pattern))
            facts: Any = number
            if number is None:
                facts = (pattern.key, is_sparse_enough(pattern))
            return type(tensor), storage.values.dtype, facts, any_requires_grad(tensor)
        strides = None
        if tensor.layout is torch.strided and not tensor.is_contiguous():
            strides = tensor.stride()
        kind = type(tensor)
        where = tensor.layout if tensor.is_cpu else tensor.device
        return kind, tensor.shape, tensor.dtype, where, strides, tensor.requires_grad

    def _new_node(self, rule: Rule, key: Any, args: Any, kwargs: dict[str, Any]) -> Node:
        """What ``rule`` says of a call, kept for the next time."""
        before, node = self.node, Node()
        self.names, self.counter, self.early = dict(before.names), before.counter, []
        parts = rule(self, *args, **kwargs)
        node.names, node.counter, node.first = self.names, self.counter, tuple(self.early)
        node.size = before.size
        if parts is not None:
            if isinstance(parts, Recipe):
                parts = [(parts, None)]
            recipes = [id(recipe) for recipe, _ in parts]
            node.parts = tuple(
                (recipe, None if call is None else _template(call, recipes, args, kwargs))
                for recipe, call in parts
            )
        if key is not None:
            node.size[0] += 1
            before.children[key] = node
        return node

    def _call(self, template: Any, base: int, args: Any, kwargs: dict[str, Any]) -> Call:
        func, places = template
        found: list[Any] = []
        for kind, what in places:
            if kind in ("part", "item"):
                found.append(self.items[what + base if kind == "part" else what])
            else:
                found.append(args[what] if kind == "arg" else kwargs[what] if kind == "kwarg" else what)
        return func, tuple(found), {}

    # what rules ask ----------------------------------------------------------------------------------

    def source(self, tensor: torch.Tensor) -> Source:
        """``tensor`` as it is now."""
        found, version = self.sources.get(id(tensor)), version_of(tensor)
        if found is None or found.version != version:
            found = self.sources[id(tensor)] = Source(len(self.items), tensor, version)
            self.items.append(found)
            if isinstance(tensor, SparseTensor):
                self.pattern(tensor.storage.pattern)
        return found

    def pattern(self, pattern: Pattern) -> int:
        """The number of a pattern."""
        number = self.numbers.get(id(pattern))
        if number is None:
            number = self.numbers[id(pattern)] = len(self.patterns)
            self.patterns.append(pattern)
        return number

    def now(self, value: Value) -> torch.Tensor:
        """The result of a value that a rule needs computed."""
        found = value.tensor()
        if value.recorder is self:
            self.early.append(value.number)
        self.source(found)
        return found

    def name(self, number: int, dims: tuple[int, ...] | None) -> str:
        """What a tensor is called in steps, by the dimensions that it is read with."""
        key = (number, dims)
        if key not in self.names:
            self.names[key] = self.fresh("A")
        return self.names[key]

    def fresh(self, letter: str) -> str:
        """A name that no other value or index of this run has."""
        self.counter += 1
        return f"{letter}{self.counter}"

    def compute(self, values: Sequence[Value]) -> None:
        """Compute ``values``, joining what can be joined."""
        left = [value for value in values if value.result is None]
        while left:
            first = left[0].recipe
            together = [
                value
                for value in left
                if value.recipe.walked == first.walked and value.recipe.learns == first.learns
            ]
            asked = tuple([value.number for value in together])
            plan = self.node.plans.get((asked, self.history))
            with Paused(), torch.set_grad_enabled(first.learns):
                if plan is None:
                    plan = self.node.plans[asked, self.history] = plan_group(self, together)
                plan.run(self)
            self.history = (*self.history, asked)
            self.groups.append(plan)
            left = [value for value in left if value.result is None]


class Paused:
    """Nothing is recorded inside."""

    def __enter__(self) -> None:
        self.recorder = recorder()
        active.recorder = None
        self.mode = None
        if len_torch_function_stack() > 0:
            self.mode = pop_mode_temporarily()
            self.mode.__enter__()

    def __exit__(self, *args: Any) -> None:
        if self.mode is not None:
            self.mode.__exit__(*args)
        active.recorder = self.recorder


def is_sparse_enough(pattern: Pattern) -> bool:
    """Whether products of it with dense matrices are better not left to torch's BLAS."""
    return len(pattern.shape) == 2 and pattern.size < FULL * pattern.shape[0] * pattern.shape[1]


def _template(call: Call, recipes: Sequence[int], args: Any, kwargs: dict[str, Any]) -> Any:
    """A call with the places among ``args`` and ``kwargs`` that its arguments come from."""
    func, given, _ = call
    places: list[tuple[str, Any]] = []
    for item in given:
        if id(item) in recipes:
            places.append(("part", recipes.index(id(item))))
            continue
        if isinstance(item, (Value, Source)):
            places.append(("item", item.number))
            continue
        position = next((n for n, argument in enumerate(args) if argument is item), None)
        name = next((name for name, argument in kwargs.items() if argument is item), None)
        if position is not None:
            places.append(("arg", position))
        else:
            places.append(("constant", item) if name is None else ("kwarg", name))
    return func, tuple(places)


def _changes(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call may change a tensor in place."""
    name = getattr(func, "__name__", "")
    if name.startswith("__"):
        return name in ("__setitem__", "__set__", "__delitem__") or (
            name.startswith("__i") and name not in ("__index__", "__int__", "__invert__")
        )
    if name.endswith("_") or kwargs.get("out") is not None:
        return True
    return kwargs.get("inplace", False) is True or any(argument is True for argument in args)


def _any_sparse(tree: Any) -> bool:
    if isinstance(tree, SparseTensor):
        return True
    if isinstance(tree, dict):
        return any(map(_any_sparse, tree.values()))
    return isinstance(tree, (list, tuple)) and any(map(_any_sparse, tree))
