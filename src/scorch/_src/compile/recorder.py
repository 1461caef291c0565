"""Record calls on sparse tensors instead of running them, so that several become one kernel.

Inside ``scorch.compile`` a call that has a rule (``recording_rule``) returns a ``LazyTensor``, which knows
its shape, its dtype and the steps that compute it. When its values are needed, by a call without a rule or
because it is returned, all steps that lead to it are fused (``compile.group_plan``). What cannot be fused
runs call by call, as it would eagerly. A result is computed from the tensors as they were when the call was
made: before anything is changed in place, everything recorded is computed.

What a rule returns depends on the call and on properties of its arguments (shapes, dtypes, formats, which of
them share a sparsity pattern), not on their values. So a compiled function keeps a tree of its calls with the
recipes of each; a call that was made before, after the same calls, is looked up, and so is the kernel.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from scorch._src.bounded import BoundedCache
from scorch._src.compile.group_plan import GroupPlan, plan_group
from scorch._src.compile.layer_plan import LayerPlan, plan_layers
from scorch._src.compile.lazy_tensor import (
    LAZY_TYPES,
    Call,
    LazySparseTensor,
    LazyTensor,
    Recipe,
    Source,
    Value,
    is_metadata_query,
    materialize,
    version_of,
)
from scorch._src.statements.autocast import is_autocast
from scorch._src.statements.modes import active
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.registry import ASSIGNMENTS, entry, look_up
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import (
    any_requires_grad,
    len_torch_function_stack,
    pop_mode_temporarily,
    tree_leaves,
)

MAX_PLANS_PER_NODE = 64
MAX_NESTED_CALLS = 32  # of one kernel, since plans of nested expressions are made by recursion
SECONDS_PER_CALL = 25e-6  # that tracing takes
MAX_NODES_PER_FUNCTION = 4096  # then its tree of calls starts over

Rule = Callable[..., Any]
RecordedCall = tuple[Recipe, Call | None]  # and its eager call, where that is not the recorded one
PLAIN = (torch.Tensor, torch.nn.Parameter)
FLOATS = (torch.float32, torch.float64)
MAX_SPARSE_DENSITY = 0.25  # from here on products run eagerly, in torch's BLAS
_CONSTANTS = {int, float, bool, str, type(None), torch.dtype}


def recording_rule(*functions: Any, applies: Callable[..., bool] | None = None) -> Callable[[Rule], Rule]:
    """Register the rule of torch functions: it returns recipes, or None to run a call eagerly.

    A rule has the parameters that it handles. A call with others, such as ``out``, runs eagerly, unless they
    have their defaults. Instead of None, a rule may return a text that says why the call runs eagerly.
    ``applies`` decides, of the same arguments, which calls the rule is for; it must be fast. The rule of a
    function that works in place records calls whose first argument is not computed yet, and no others.
    """

    def register(rule: Rule) -> Rule:
        spec = inspect.getfullargspec(rule)
        handled = {*spec.args, *spec.kwonlyargs}

        def record(recorder: Recorder, /, *args: Any, **kwargs: Any) -> Any:
            count = len(args) if spec.varargs else len(spec.args) - 1
            others = {} if spec.varkw else {name: kwargs.pop(name) for name in kwargs.keys() - handled}
            scales = [others.pop(name, 1) for name in ("alpha", "beta")]
            is_default = all(other is None or other is False for other in (*args[count:], *others.values()))
            if scales != [1, 1] or not is_default:
                return None
            return rule(recorder, *args[:count], **kwargs)

        record.applies = applies  # type: ignore[attr-defined]
        for function in functions:
            entry(function).record = record
        return rule

    return register


class Node:
    """A recorded call after those that led here: its recipes, the calls after it, and its plans.

    ``computed_first``: the numbers of values that its rule needed computed; ``names`` and ``counter`` are
    those of all steps so far.
    """

    def __init__(self) -> None:
        self.children: dict[Any, Node] = {}
        self.calls: tuple[tuple[Recipe, Any], ...] = ()
        self.computed_first: tuple[int, ...] = ()
        self.reason = ""  # why the call runs eagerly
        self.names: dict[tuple[int, tuple[int, ...] | None], str] = {}
        self.counter = 0
        self.plans: BoundedCache[Any, GroupPlan | LayerPlan] = BoundedCache(MAX_PLANS_PER_NODE)
        self.size = [0]  # nodes of the whole tree, shared by all of them

    @property
    def is_full(self) -> bool:
        return self.size[0] >= MAX_NODES_PER_FUNCTION


class Recorder(TorchFunctionMode):
    """Record calls that have a rule, compute what other calls need, and run those."""

    def __init__(self, root: Node) -> None:
        super().__init__()
        self.node = root
        self.items: list[Value | Source] = []  # in the order of the calls
        self.sources: dict[int, Source] = {}
        self.patterns: list[Pattern] = []
        self.pattern_numbers: dict[int, int] = {}  # by id
        self.pending: list[weakref.ref[LazyTensor]] = []
        self.history: tuple[Any, ...] = ()  # what has been computed
        self.computed_early: list[int] = []
        self.groups: list[GroupPlan | LayerPlan] = []
        self.absorbed: dict[int, LayerPlan] = {}  # values that are only part of a layer's output
        self.unrecorded: list[str] = []
        self.dense_calls: list[str] = []  # calls that have a rule, but read no sparse tensor
        self.unfused: dict[str, str] = {}  # calls that a rule does not record, with the reasons
        self.reason = ""
        self.sparse_call_count = 0  # calls that read sparse tensors
        self.call_count = 0
        self.saved_seconds = 0.0  # by fusion, as estimated

    @property
    def pays(self) -> bool:
        """Whether fusion saves more time than recording takes."""
        return self.saved_seconds > self.call_count * SECONDS_PER_CALL

    def __enter__(self) -> Any:
        self.outer = active.recorder
        active.recorder = self
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        active.recorder = self.outer
        super().__exit__(*args)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_metadata_query(func):
            return func(*args, **kwargs)
        self.call_count += 1
        rule = look_up(func).record
        if rule is not None:
            result = self.record(rule, func, args, kwargs)
            if result is not None:
                if not _may_mutate(func, args, kwargs):
                    return result
                args[0]._value = result._value  # nobody else has its values yet
                return args[0]
        return self.run(func, args, kwargs)

    def record_or_run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Record a call of a Scorch function, or run it."""
        self.call_count += 1
        rule = look_up(func).record
        with PauseRecording():
            result = None if rule is None else self.record(rule, func, args, kwargs)
            return self.run(func, args, kwargs) if result is None else result

    def try_record(self, func: Any, args: Any) -> LazyTensor | None:
        """Record a call of a Scorch function, while recording is paused; None if it must run eagerly."""
        self.call_count += 1
        return self.record(look_up(func).record, func, args, {})

    def record(self, rule: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> LazyTensor | None:
        if is_autocast() or (rule.applies is not None and not rule.applies(*args, **kwargs)):
            return None
        key = self._key(func, args, kwargs)
        node = None if key is None else self.node.children.get(key)
        if node is None:
            node = self._new_node(rule, key, args, kwargs)
        else:
            for number in node.computed_first:
                self.source(self.items[number].tensor())
        self.node = node
        if not node.calls:
            self.reason = node.reason
            return None
        base, args = len(self.items), tuple([a._value if type(a) in LAZY_TYPES else a for a in args])
        if kwargs:
            kwargs = {name: a._value if type(a) in LAZY_TYPES else a for name, a in kwargs.items()}
        for recipe, template in node.calls:
            call = func, args, kwargs
            if template is not None:
                call = self._fill_call_template(template, base, (*args, *kwargs.values()))
            value = Value(recipe, len(self.items), call, self)
            self.items.append(value)
        self.sparse_call_count += recipe.pattern_number >= 0
        lazy = LazySparseTensor(value) if recipe.is_sparse else LazyTensor(value)
        self.pending.append(weakref.ref(lazy))
        if value.depth >= MAX_NESTED_CALLS and recipe.pattern_number >= 0 and not recipe.is_layer:
            self.compute([value])
        return lazy

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a call that is not recorded, after computing what it needs."""
        if _may_mutate(func, args, kwargs):
            self.compute(self.pending_values())
        args, kwargs = materialize(args), materialize(kwargs) if kwargs else kwargs
        reason, self.reason = self.reason, ""
        name = getattr(func, "__name__", str(func))
        if _has_sparse(args) or (kwargs and _has_sparse(kwargs)):
            self.sparse_call_count += 1
            if reason:
                self.unfused[name] = reason
                with PauseRecording():
                    return func(*args, **kwargs)
            reason = "" if look_up(func).record is None else _why_eager((args, kwargs))
            if reason:
                self.unfused[name] = reason
            else:
                self.unrecorded.append(name)
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        is_dense = isinstance(result, torch.Tensor) and not isinstance(result, SparseTensor)
        if is_dense and look_up(func).record is not None:
            self.dense_calls.append(name)
        return result

    def pending_values(self) -> list[Value]:
        """Return the values that may still be needed."""
        lazy_tensors = [ref() for ref in self.pending]
        return [lazy._value for lazy in lazy_tensors if lazy is not None and lazy._value.result is None]

    def close(self) -> None:
        """Release all tensors, unless a result may still be needed."""
        if not self.pending_values():
            self.items.clear()
            self.sources.clear()

    # the tree of calls -------------------------------------------------------------------------------

    def _key(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return all that the rule of a call depends on; None where that cannot be determined.

        Tensors get their numbers here, in the order in which calls are made.
        """
        key: list[Any] = [func, torch.is_grad_enabled()]
        is_complete = True
        for argument in args if not kwargs else (*args, *kwargs, *kwargs.values()):
            kind = type(argument)
            if kind in LAZY_TYPES:
                value = argument._value
                if value.recorder is self and value.result is None:
                    key.append(value.number)
                    continue
                argument = value.tensor()
            if isinstance(argument, torch.Tensor):
                source = self.sources.get(id(argument))
                if source is not None and source.version == version_of(argument):
                    key.append(source.number)
                else:
                    key.append(self._describe_tensor(argument))
                    self.source(argument)
            elif kind in _CONSTANTS:
                key += (kind, argument)
            else:
                is_complete = False
        return tuple(key) if is_complete else None

    def _describe_tensor(self, tensor: torch.Tensor) -> Any:
        """Describe a tensor that is read for the first time, as far as rules and kernels depend on it."""
        if isinstance(tensor, SparseTensor):
            pattern = tensor.storage.pattern
            pattern_key: Any = self.pattern_numbers.get(id(pattern))
            if pattern_key is None:
                pattern_key = (pattern.key, is_sparse_enough(pattern))
            return type(tensor), tensor.storage.values.dtype, pattern_key, any_requires_grad(tensor)
        has_gaps = tensor.layout is torch.strided and not tensor.is_contiguous()
        place = tensor.layout if tensor.is_cpu else tensor.device, tensor.stride() if has_gaps else None
        return type(tensor), tensor.shape, tensor.dtype, place, tensor.requires_grad

    def _new_node(self, rule: Rule, key: Any, args: Any, kwargs: dict[str, Any]) -> Node:
        """Apply ``rule`` to a call, and keep what it returns."""
        parent, node = self.node, Node()
        self.names, self.counter, self.computed_early = dict(parent.names), parent.counter, []
        recorded = rule(self, *args, **kwargs)
        node.names, node.counter, node.computed_first = self.names, self.counter, tuple(self.computed_early)
        node.size = parent.size
        if isinstance(recorded, str):
            node.reason = recorded
        elif recorded is not None:
            if isinstance(recorded, Recipe):
                recorded = [(recorded, None)]
            recipes, arguments = [id(recipe) for recipe, _ in recorded], (*args, *kwargs.values())
            node.calls = tuple(
                (recipe, None if call is None else _make_call_template(call, recipes, arguments))
                for recipe, call in recorded
            )
        if key is not None:
            node.size[0] += 1
            parent.children[key] = node
        return node

    def _fill_call_template(self, template: Any, base: int, arguments: Sequence[Any]) -> Call:
        func, places = template
        lists = {"recorded": self.items[base:], "item": self.items, "argument": arguments}
        found = []
        for kind, index in places:
            found.append(lists[kind][index] if kind in lists else index)
        return func, tuple(found), {}

    # used by rules -----------------------------------------------------------------------------------

    def source(self, tensor: torch.Tensor) -> Source:
        """Return ``tensor`` as a source, numbered anew if it has changed since."""
        source, version = self.sources.get(id(tensor)), version_of(tensor)
        if source is None or source.version != version:
            source = self.sources[id(tensor)] = Source(len(self.items), tensor, version)
            self.items.append(source)
            if isinstance(tensor, SparseTensor):
                self.pattern(tensor.storage.pattern)
        return source

    def pattern(self, pattern: Pattern) -> int:
        """Return the number of a pattern."""
        number = self.pattern_numbers.get(id(pattern))
        if number is None:
            number = self.pattern_numbers[id(pattern)] = len(self.patterns)
            self.patterns.append(pattern)
        return number

    def materialize_value(self, value: Value) -> torch.Tensor:
        """Compute a value that a rule needs."""
        tensor = value.tensor()
        if value.recorder is self:
            self.computed_early.append(value.number)
        self.source(tensor)
        return tensor

    def name(self, number: int, dims: tuple[int, ...] | None) -> str:
        """Return the name of a tensor in steps, by the dimensions that are read."""
        key = (number, dims)
        if key not in self.names:
            self.names[key] = self.fresh("A")
        return self.names[key]

    def fresh(self, letter: str) -> str:
        """Return a name that no other value or index of this run has."""
        self.counter += 1
        return f"{letter}{self.counter}"

    def compute(self, values: Sequence[Value]) -> None:
        """Compute ``values``, fusing what can be fused."""
        remaining = [value for value in values if value.result is None]
        while remaining:
            recipe = remaining[0].recipe
            together = [
                value
                for value in remaining
                if value.recipe.pattern_number == recipe.pattern_number
                and value.recipe.is_grad_enabled == recipe.is_grad_enabled
                and value.recipe.is_layer == recipe.is_layer
            ]
            requested = tuple([value.number for value in together])
            plan = self.node.plans.get((requested, self.history))
            with PauseRecording(), torch.set_grad_enabled(recipe.is_grad_enabled):
                if plan is None:
                    make_plan = plan_layers if recipe.is_layer else plan_group
                    plan = self.node.plans[requested, self.history] = make_plan(self, together)
                plan.run(self)
            self.saved_seconds += plan.seconds_saved(self)
            self.history = (*self.history, requested)
            self.groups.append(plan)
            remaining = [value for value in remaining if value.result is None]


class PauseRecording:
    """A context in which nothing is recorded."""

    def __enter__(self) -> None:
        self.recorder = active.recorder
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
    """Whether products with dense matrices are faster here than in torch's BLAS."""
    return len(pattern.shape) == 2 and pattern.size < MAX_SPARSE_DENSITY * pattern.shape[0] * pattern.shape[1]


def _make_call_template(call: Call, recipe_ids: Sequence[int], arguments: Sequence[Any]) -> Any:
    """Describe a call by where its arguments come from, such as ``arguments`` of the recorded one."""

    def place_of(item: Any) -> tuple[str, Any]:
        if id(item) in recipe_ids:
            return "recorded", recipe_ids.index(id(item))
        if isinstance(item, (Value, Source)):
            return "item", item.number
        position = next((n for n, argument in enumerate(arguments) if argument is item), None)
        return ("constant", item) if position is None else ("argument", position)

    func, args, _ = call
    return func, tuple(map(place_of, args))


def _may_mutate(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call may change a tensor in place."""
    name = getattr(func, "__name__", "")
    if name.startswith("__"):
        return name in ASSIGNMENTS or name in ("__set__", "__delitem__")
    if name.endswith("_") or kwargs.get("out") is not None:
        return True
    return kwargs.get("inplace", False) is True or any(argument is True for argument in args)


def _why_eager(arguments: Any) -> str:
    """Say why no rule records a call of a function that has one."""
    if is_autocast():
        return "autocast is on; call it outside of torch.autocast to fuse it"
    tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    dtype = next((tensor.dtype for tensor in tensors if tensor.dtype not in FLOATS), None)
    if dtype is None:
        return "no rule fuses it with these arguments"
    return f"fused kernels take float32 and float64, but an operand has {dtype}; convert it, as with .float()"


def _has_sparse(tree: Any) -> bool:
    if isinstance(tree, SparseTensor):
        return True
    if isinstance(tree, dict):
        return any(map(_has_sparse, tree.values()))
    return isinstance(tree, (list, tuple)) and any(map(_has_sparse, tree))
