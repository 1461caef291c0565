"""Leave submodules of a compiled module that read no sparse tensor to ``torch.compile``.

Candidates are submodules with at least two layers. The first call inside of the compiled module runs as it
is, to see whether a sparse tensor comes along; if none does, the submodule is compiled, with the user's
options, on its next call. Where ``torch.compile`` fails, say without a compiler, the submodule stays as it is
and ``explain`` says why. Outside of the compiled module nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scorch._src.compile.lazy_tensor import materialize
from scorch._src.compile.recorder import PauseRecording
from scorch._src.statements.modes import recorder
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import tree_leaves

CALL_ATTRIBUTE = "_compiled_call_impl"  # what a module calls instead, as set by Module.compile
MIN_LAYERS = 2


class DenseSubmodule:
    """A submodule: new, read by sparse calls, compiled, or failed for ``reason``."""

    def __init__(self, name: str, module: torch.nn.Module, options: dict[str, Any]) -> None:
        self.name = name
        self.module = module
        self.inner = list(module.modules())
        self.options = options
        self.state = "new"
        self.reason = ""
        self.compiled: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        record = recorder()
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
        installed = {module: module.__dict__.pop(CALL_ATTRIBUTE, None) for module in self.inner}
        try:
            with PauseRecording():
                if self.compiled is None:
                    self.compiled = torch.compile(self.module._call_impl, **self.options)
                try:
                    return self.compiled(*args, **kwargs)
                except Exception as error:
                    result = self.module._call_impl(*args, **kwargs)  # raises the user's own errors
                    self.state, self.reason = "own", f"torch.compile: {type(error).__name__}"
                    return result
        finally:
            for module, call in installed.items():
                if call is not None:
                    module.__dict__[CALL_ATTRIBUTE] = call


class DenseSubmodules:
    """All submodules that may be dense; inside of ``with`` their calls are observed."""

    def __init__(self, module: torch.nn.Module, options: dict[str, Any]) -> None:
        self.submodules = [
            DenseSubmodule(name, submodule, options)
            for name, submodule in module.named_modules()
            if submodule is not module
            and _count_layers(submodule) >= MIN_LAYERS
            and submodule._compiled_call_impl is None
        ]

    def __enter__(self) -> None:
        for submodule in self.submodules:
            submodule.module.__dict__[CALL_ATTRIBUTE] = submodule

    def __exit__(self, *_: Any) -> None:
        for submodule in self.submodules:
            submodule.module.__dict__.pop(CALL_ATTRIBUTE, None)

    def explain(self) -> tuple[str, ...]:
        """List the submodules that torch compiles, outermost only, and those that it could not."""
        lines: list[str] = []
        names: list[str] = []
        for submodule in self.submodules:
            if submodule.state == "dense" and not any(
                submodule.name.startswith(f"{name}.") for name in names
            ):
                names.append(submodule.name)
                lines.append(submodule.name)
            elif submodule.reason:
                lines.append(f"{submodule.name} (runs as it is; {submodule.reason})")
        return tuple(lines)


def _count_layers(module: torch.nn.Module) -> int:
    return sum(1 for submodule in module.modules() if next(submodule.children(), None) is None)


def _has_sparse(tree: Any) -> bool:
    return any(isinstance(leaf, SparseTensor) for leaf in tree_leaves(tree))
