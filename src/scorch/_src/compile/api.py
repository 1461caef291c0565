"""``scorch.compile``: fuse the sparse calls of a function into few kernels, leave the dense to torch."""

from __future__ import annotations

import contextlib
import functools
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from scorch._src.compile.dense_submodules import DenseSubmodules
from scorch._src.compile.group_plan import GroupPlan
from scorch._src.compile.lazy_tensor import LAZY_TYPES, materialize
from scorch._src.compile.recorder import Node, Recorder
from scorch._src.statements.modes import recorder
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import peek_interpreter_stack, tree_leaves
from scorch.settings import current


@dataclass(frozen=True)
class GroupExplanation:
    """Recorded calls that became one kernel, or ran one by one for ``reason``."""

    calls: tuple[str, ...]
    statements: str
    source: str
    reason: str
    gradients: str = ""  # how they are computed; "" if none are needed

    def __str__(self) -> str:
        if self.reason:
            return f"one by one: {', '.join(self.calls)}\n  {self.reason}"
        text = f"one kernel: {', '.join(self.calls)}\n" + textwrap.indent(self.statements, "  ")
        if self.gradients:
            text += "\n  gradients:\n" + textwrap.indent(self.gradients, "    ")
        return text


@dataclass(frozen=True)
class FusionExplanation:
    """Report how the sparse calls of a compiled function were computed.

    ``groups`` in the order in which they ran; ``others``: calls on sparse tensors that were not recorded;
    ``dense``: submodules without sparse tensors, which ``torch.compile`` compiles from their second call on.
    """

    groups: tuple[GroupExplanation, ...]
    others: tuple[str, ...]
    dense: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The source of the kernels of all groups."""
        return "\n".join(group.source for group in self.groups if group.source)

    def __str__(self) -> str:
        paragraphs = [str(group) for group in self.groups]
        if self.others:
            paragraphs.append(f"as outside, there is no rule to record them: {', '.join(self.others)}")
        if self.dense:
            paragraphs.append(f"left to torch.compile: {', '.join(self.dense)}")
        return "\n\n".join(paragraphs) or "no sparse calls"


def compile(model: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile ``model``, a function or module, fusing its calls on sparse tensors into few kernels.

    Takes what ``torch.compile`` takes. A function that meets no sparse tensor is compiled by
    ``torch.compile`` with the same options, and so are submodules of a module that meet none; dense calls
    between sparse ones run as they are. ``scorch.explain(compiled, *args)`` shows what was fused, how
    gradients are computed, and what was left to torch.

    >>> import torch, scorch
    >>> A = scorch.from_torch(torch.eye(3), format="csr")
    >>> layer = scorch.compile(lambda A, X, b: torch.relu(A @ X + b))
    >>> layer(A, torch.ones(3, 2), torch.tensor([1.0, -2.0]))
    tensor([[2., 0.],
            [2., 0.],
            [2., 0.]])
    """
    if model is None:
        return functools.partial(compile, **options)
    if isinstance(model, torch.nn.Module):
        return CompiledModule(model, options)
    return functools.wraps(model)(Compiled(model, options))


class Compiled:
    """A function whose sparse calls are recorded and fused."""

    def __init__(
        self, function: Callable[..., Any], options: dict[str, Any], submodules: DenseSubmodules | None = None
    ) -> None:
        self.function = function
        self.options = options
        self.submodules = submodules
        self.is_dense = False  # the last call without sparse arguments read no sparse tensor
        self.trees: dict[Any, Node] = {}  # of recorded calls, by the settings they depend on

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if recorder() is not None or peek_interpreter_stack() is not None or torch.compiler.is_compiling():
            return self.function(*args, **kwargs)
        if not self.is_dense:
            result, record = self._record(args, kwargs)
            self.is_dense = not record.sparse_call_count
            return result
        if any(isinstance(leaf, SparseTensor) for leaf in tree_leaves((args, kwargs))):
            return self._record(args, kwargs)[0]
        return self.by_torch(*args, **kwargs)

    @functools.cached_property
    def by_torch(self) -> Callable[..., Any]:
        """The function compiled by ``torch.compile``."""
        return torch.compile(self.function, **self.options)

    def _record(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Recorder]:
        without = current().without
        root = self.trees.get(without)
        if root is None or root.is_full:
            root = self.trees[without] = Node()
        record = Recorder(root)
        with record, self.submodules or contextlib.nullcontext():
            result = self.function(*args, **kwargs)
        if type(result) in LAZY_TYPES:
            result = result._value.tensor()
        elif not isinstance(result, torch.Tensor):
            record.compute([leaf._value for leaf in tree_leaves(result) if type(leaf) in LAZY_TYPES])
            result = materialize(result)
        record.close()
        return result, record

    def explain(self, *args: Any, **kwargs: Any) -> FusionExplanation:
        """Run ``self(*args, **kwargs)`` and report how its sparse calls were computed."""
        _, record = self._record(args, kwargs)
        groups = tuple(_explain_group(group) for group in record.groups if group.pattern_number >= 0)
        others = tuple(name for name in record.unrecorded if name != "__get__")
        return FusionExplanation(groups, others, () if self.submodules is None else self.submodules.explain())

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


def _explain_group(plan: GroupPlan) -> GroupExplanation:
    if plan.kernel is None:
        return GroupExplanation(plan.calls, "", "", plan.reason)
    gradients = "" if plan.backward is None else plan.backward.explain()
    return GroupExplanation(plan.calls, plan.kernel.header, plan.kernel.source, "", gradients)


class CompiledModule(torch.nn.Module):
    """A module whose sparse calls are recorded and fused; all else is the module's own."""

    def __init__(self, module: torch.nn.Module, options: dict[str, Any]) -> None:
        super().__init__()
        self._orig_mod = module
        self._compiled = Compiled(module.__call__, options, DenseSubmodules(module, options))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> FusionExplanation:
        return self._compiled.explain(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_orig_mod"), name)
