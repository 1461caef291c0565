"""``scorch.compile``: fuse the sparse calls of a function into few kernels, leave the dense to torch."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from scorch._src.compile.argument_names import named_tensors, user_names
from scorch._src.compile.group_plan import GroupPlan
from scorch._src.compile.layer_plan import LayerPlan
from scorch._src.compile.lazy_tensor import LAZY_TYPES, Value, materialize
from scorch._src.compile.recorder import Node, PauseRecording, Recorder
from scorch._src.name_hints import unknown_keyword
from scorch._src.statements.modes import active
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import peek_interpreter_stack, tree_leaves
from scorch.errors import OperandError, kind_of
from scorch.settings import current

CALL_ATTRIBUTE = "_compiled_call_impl"  # what a module calls instead, as set by Module.compile
MIN_LAYERS = 2
_BACKENDS = ("inductor", "eager", "aot_eager")  # that PyTorch always has
MAX_SIGNATURES = 256  # of calls that take longer recorded


def compile(model: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function or module and fuse its calls on sparse tensors into few kernels.

    Functions and submodules that meet no sparse tensor are compiled by ``torch.compile`` with the same
    options, which have no effect on others: dense calls between sparse ones run as they are. To capture a
    program with sparse tensors in one graph, call PyTorch's own ``torch.compile``.
    ``scorch.explain(compiled, *args)`` shows what was fused, how gradients are computed and what was left to
    PyTorch. If the first call of a function fuses less than tracing costs, later calls with the same shapes
    are not traced, and their results may differ in the last bits.

    Args:
        model: the function or module; without it, a decorator is returned.
        options: the arguments of ``torch.compile``. With ``fullgraph=True``, a function that meets sparse
            tensors raises a warning, since no graph is captured.

    Returns:
        A callable with the signature of ``model``, or a module for a module.

    Raises:
        OperandError: ``model`` is neither a function nor a module, or ``torch.compile`` has no such option.

    Example:

        >>> import torch, scorch
        >>> A = scorch.from_torch(torch.eye(3), format="csr")
        >>> layer = scorch.compile(lambda A, X, b: torch.relu(A @ X + b))
        >>> layer(A, torch.ones(3, 2), torch.tensor([1.0, -2.0]))
        tensor([[2., 0.],
                [2., 0.],
                [2., 0.]])
    """
    known = inspect.signature(torch.compile).parameters
    unknown = [name for name in options if name not in known]
    if unknown and inspect.Parameter.VAR_KEYWORD not in {each.kind for each in known.values()}:
        raise unknown_keyword("compile", unknown[0], known.keys())
    _check_backend(options.get("backend"))
    if model is None:
        return functools.partial(compile, **options)
    if not callable(model):
        raise OperandError(f"compile expected a function or a torch.nn.Module, but got {kind_of(model)}")
    if isinstance(model, torch.nn.Module):
        return CompiledModule(model, options)
    return functools.wraps(model)(Compiled(model, options))


def _check_backend(backend: Any) -> None:
    """Refuse the name of a backend that ``torch.compile`` does not know, which may be called much later."""
    if isinstance(backend, str) and backend not in _BACKENDS:
        from scorch._src.torch_internals import lookup_backend  # imports torch's compiler

        lookup_backend(backend)


@dataclass(eq=False, repr=False)
class Compiled:
    """A function whose sparse calls are recorded and fused."""

    function: Callable[..., Any]
    options: dict[str, Any]
    submodules: DenseSubmodules | None = None
    is_dense: bool = False  # the last call without sparse arguments read no sparse tensor
    trees: dict[Any, Node] = field(default_factory=dict)  # of recorded calls, by settings they depend on
    has_warned: bool = False
    unprofitable: set[Any] = field(default_factory=set)  # signatures of calls that take longer recorded

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        is_traced = peek_interpreter_stack() is not None or torch.compiler.is_compiling()
        if is_traced or active.recorder is not None:
            return self.function(*args, **kwargs)
        if self.unprofitable and _signature(args, kwargs) in self.unprofitable:
            return self.function(*args, **kwargs)
        if not self.is_dense:
            result, record = self._record(args, kwargs)
            self.is_dense = not record.sparse_call_count
            return result
        if _has_sparse((args, kwargs)):
            return self._record(args, kwargs)[0]
        return self.by_torch(*args, **kwargs)

    @functools.cached_property
    def by_torch(self) -> Callable[..., Any]:
        """The function compiled by ``torch.compile``."""
        is_module = self.submodules is not None
        return torch.compile(_in_own_frame(self.function) if is_module else self.function, **self.options)

    def _record(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Recorder]:
        result, record = self._run(args, kwargs)
        record.close()
        if self._is_unprofitable(record) and len(self.unprofitable) < MAX_SIGNATURES:
            self.unprofitable.add(_signature(args, kwargs))
        if record.sparse_call_count and not self.has_warned and self.options.get("fullgraph"):
            self.has_warned = True
            warnings.warn(
                "fullgraph=True has no effect on this function: scorch.compile fuses its calls on sparse "
                "tensors and captures no graph. torch.compile(fullgraph=True), with import torch, does",
                stacklevel=3,
            )
        return result, record

    def _is_unprofitable(self, record: Recorder) -> bool:
        """Whether calls like the recorded one are faster as they are; ``torch.compile`` has none of them."""
        is_own = self.submodules is None or not self.submodules.has_dense
        return is_own and record.sparse_call_count > 0 and not record.pays

    def _run(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Recorder]:
        disabled = current().disable
        root = self.trees.get(disabled)
        if root is None or root.is_full:
            root = self.trees[disabled] = Node()
        record = Recorder(root)
        with record, self.submodules or contextlib.nullcontext():
            result = self.function(*args, **kwargs)
        if type(result) in LAZY_TYPES:
            result = result._value.tensor()
        elif not isinstance(result, torch.Tensor):
            record.compute([leaf._value for leaf in tree_leaves(result) if type(leaf) in LAZY_TYPES])
            result = materialize(result)
        return result, record

    def find_fusion(self, *args: Any, **kwargs: Any) -> Fusion:
        """Run ``self(*args, **kwargs)`` and return how its sparse calls were computed."""
        _, record = self._run(args, kwargs)
        names = user_names(record, named_tensors(self.function, args, kwargs))
        groups = tuple(_find_tensors(plan, record) for plan in record.groups if plan.pattern_number >= 0)
        record.close()
        others = tuple(name for name in record.unrecorded if name != "__get__")
        compiled, failed = ((), ()) if self.submodules is None else self.submodules.explain()
        unfused = tuple(f"{name}: {reason}" for name, reason in record.unfused.items())
        calls_on_dense = record.dense_calls if record.sparse_call_count else []  # else torch.compile has them
        on_dense = tuple(name for name in calls_on_dense if name != "__get__")
        is_left = self._is_unprofitable(record)
        return Fusion(groups, names, others, compiled, failed, unfused, on_dense, is_left)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


@dataclass(frozen=True)
class FusedCalls:
    """Recorded calls, with the tensors that they read and returned, by their names in steps."""

    plan: GroupPlan | LayerPlan
    operands: Mapping[str, torch.Tensor]
    results: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Fusion:
    """What a call of a compiled function fused, as explanations show it (``explain.fusion_report``).

    ``names`` are the user's names of tensors, by their names in steps; the other fields are those of
    ``FusionExplanation``.
    """

    groups: tuple[FusedCalls, ...]
    names: Mapping[str, str]
    others: tuple[str, ...]
    dense: tuple[str, ...]
    failed: tuple[str, ...]
    unfused: tuple[str, ...]
    dense_calls: tuple[str, ...]
    is_unprofitable: bool


def _find_tensors(plan: GroupPlan | LayerPlan, record: Recorder) -> FusedCalls:
    numbers = plan.order if isinstance(plan, GroupPlan) else [n for chain in plan.chains for n in chain]
    requested = plan.requested if isinstance(plan, GroupPlan) else [chain[-1] for chain in plan.chains]
    values = [value for number in numbers if isinstance(value := record.items[number], Value)]
    read = {name: number for value in values for name, number in value.recipe.parents.items()}
    operands = {name: record.items[number].result for name, number in read.items() if number in plan.sources}
    results = {value.recipe.access.tensor: value.result for value in values if value.number in requested}
    return FusedCalls(plan, _computed(operands), _computed(results))


def _computed(tensors: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in tensors.items() if tensor is not None}


class CompiledModule(torch.nn.Module):
    """A module whose sparse calls are recorded and fused; all else is the module's own."""

    def __init__(self, module: torch.nn.Module, options: dict[str, Any]) -> None:
        super().__init__()
        self._orig_mod = module
        self._compiled = Compiled(module.__call__, options, DenseSubmodules(module, options))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)

    def find_fusion(self, *args: Any, **kwargs: Any) -> Fusion:
        return self._compiled.find_fusion(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_orig_mod"), name)


def _in_own_frame(module: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a module: alone, torch's own, such as ``Sequential``, are not compiled."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    return call


# submodules that read no sparse tensor, left to torch.compile ----------------------------------------


@dataclass(eq=False)
class DenseSubmodule:
    """A submodule: new, read by sparse calls, compiled, or failed for ``reason``."""

    name: str
    module: torch.nn.Module
    inner: list[torch.nn.Module]
    options: dict[str, Any]
    state: str = "new"
    reason: str = ""
    compiled: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        record = active.recorder
        if record is None or self.state == "own":
            return self.module._call_impl(*args, **kwargs)
        if self.state == "dense" and not _has_sparse((args, kwargs)):
            return self._by_torch(*materialize(args), **materialize(kwargs))
        count_before = record.sparse_call_count
        result = self.module._call_impl(*args, **kwargs)
        is_dense = record.sparse_call_count == count_before and not _has_sparse((args, kwargs, result))
        self.state = "dense" if is_dense else "own"
        return result

    def _by_torch(self, *args: Any, **kwargs: Any) -> Any:
        """Call the submodule compiled by ``torch.compile``, or, if that fails, as it is."""
        installed = {inner: inner.__dict__.pop(CALL_ATTRIBUTE, None) for inner in self.inner}
        try:
            with PauseRecording():
                if self.compiled is None:
                    self.compiled = torch.compile(_in_own_frame(self.module), **self.options)
                try:
                    return self.compiled(*args, **kwargs)
                except Exception as error:
                    result = self.module._call_impl(*args, **kwargs)  # raises the user's own errors
                    self.state, self.reason = "own", _describe_error(error)
                    return result
        finally:
            for inner, call in installed.items():
                if call is not None:
                    inner.__dict__[CALL_ATTRIBUTE] = call


class DenseSubmodules:
    """All submodules with at least two layers; inside ``with`` their calls are observed.

    The first call inside the compiled module runs as it is, to see whether a sparse tensor comes along; if
    none does, the submodule is compiled, with the user's options, on its next call. Where ``torch.compile``
    fails, say without a compiler, the submodule stays as it is and ``explain`` says why. Outside the
    compiled module nothing changes.
    """

    def __init__(self, module: torch.nn.Module, options: dict[str, Any]) -> None:
        self.submodules = [
            DenseSubmodule(name, submodule, list(submodule.modules()), options)
            for name, submodule in module.named_modules()
            if submodule is not module
            and _count_layers(submodule) >= MIN_LAYERS
            and submodule._compiled_call_impl is None
        ]

    @property
    def has_dense(self) -> bool:
        """Whether ``torch.compile`` compiles some of them."""
        return any(submodule.state == "dense" for submodule in self.submodules)

    def __enter__(self) -> None:
        for submodule in self.submodules:
            submodule.module.__dict__[CALL_ATTRIBUTE] = submodule

    def __exit__(self, *_: Any) -> None:
        for submodule in self.submodules:
            submodule.module.__dict__.pop(CALL_ATTRIBUTE, None)

    def explain(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """List the submodules that torch compiles, outermost only, and those that it could not."""
        compiled: list[str] = []
        for submodule in self.submodules:
            name = submodule.name
            if submodule.state == "dense" and not any(name.startswith(f"{outer}.") for outer in compiled):
                compiled.append(name)
        failed = [f"{each.name} ({each.reason})" for each in self.submodules if each.reason]
        return tuple(compiled), tuple(failed)


def _describe_error(error: Exception) -> str:
    """Return the name of an error and the first line of its message."""
    first_line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def _count_layers(module: torch.nn.Module) -> int:
    return sum(1 for submodule in module.modules() if next(submodule.children(), None) is None)


def _signature(args: Any, kwargs: dict[str, Any]) -> Any:
    """Return what the time of a call mostly depends on."""
    facts: list[Any] = [torch.is_grad_enabled(), current().disable]
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, SparseTensor):
            facts.append((leaf.storage.pattern.key, leaf.storage.values.dtype))
        elif isinstance(leaf, torch.Tensor):
            facts.append((leaf.shape, leaf.dtype))
    return tuple(facts)


def _has_sparse(tree: Any) -> bool:
    return any(isinstance(leaf, SparseTensor) for leaf in tree_leaves(tree))
