"""``python -m scorch doctor SCRIPT``: diagnose the model that a script calls, on the input it calls it with.

The script runs as ``__main__`` until its first call of a module with parameters has returned, or to its end
with ``--finish``, and is not changed. Calls of modules inside of other modules do not count.
"""

from __future__ import annotations

import contextlib
import inspect
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from scorch._src.explain.doctor import SPARSITIES, doctor
from scorch._src.explain.doctor_report import Diagnosis
from scorch.errors import ArgumentError, MissingFileError


class _FirstCallError(BaseException):
    """Ends the script once its model was called; no ``except Exception`` of the script's stops it."""


class _Recorder:
    """The outermost call of the largest module so far, with its arguments."""

    def __init__(self, finish: bool) -> None:
        self.finish = finish
        self.depth = 0
        self.parameters = 0
        self.call: tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]] | None = None

    def enter(self, module: torch.nn.Module, args: Any) -> None:
        self.depth += 1

    def leave(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        self.depth -= 1
        count = 0 if self.depth else sum(parameter.numel() for parameter in module.parameters())
        if not count or count < self.parameters:
            return
        self.parameters, self.call = count, (module, args, kwargs)
        if not self.finish:
            raise _FirstCallError


def diagnose_script(
    script: str,
    arguments: Sequence[str] = (),
    *,
    finish: bool = False,
    sparsities: Sequence[float] = SPARSITIES,
) -> Diagnosis:
    """Run a script and diagnose the model that it calls; with ``finish`` the largest, at the script's end."""
    if not Path(script).is_file():
        raise MissingFileError(f"no such file: {script}")
    recorder = _Recorder(finish)
    with _recording(recorder), _as_program(script, arguments), contextlib.suppress(_FirstCallError):
        runpy.run_path(script, run_name="__main__")
    if recorder.call is None:
        raise ArgumentError(
            f"{script} did not call a torch.nn.Module with parameters; call the model in it, as in "
            "model(batch)"
        )
    module, args, kwargs = recorder.call
    example = _name_arguments(module, args, kwargs) if kwargs else args
    return doctor(module, example, sparsities=sparsities, quiet=True)


def _name_arguments(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names that ``forward`` has for them."""
    signature = inspect.signature(module.forward)
    named = dict(signature.bind(*args, **kwargs).arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named.update(named.pop(parameter.name, {}))
        elif (
            parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY)
            and parameter.name in named
        ):
            raise ArgumentError(
                f"the script called {type(module).__name__} with both keyword arguments and arguments that "
                "cannot be passed by keyword; give forward named parameters, or call scorch.doctor(model, "
                "example) on a wrapper that does"
            )
    return named


@contextlib.contextmanager
def _recording(recorder: _Recorder) -> Iterator[None]:
    hooks = [
        register_module_forward_pre_hook(recorder.enter),
        register_module_forward_hook(recorder.leave, with_kwargs=True, always_call=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
            # PyTorch keeps this entry, and warns of global hooks at each later torch.compile(module).
            vars(torch.nn.modules.module).get("_global_forward_hooks_with_kwargs", {}).pop(hook.id, None)


@contextlib.contextmanager
def _as_program(script: str, arguments: Sequence[str]) -> Iterator[None]:
    """Let the script see its own arguments and import what lies beside it, as ``python SCRIPT`` does."""
    before_arguments, before_path = sys.argv, list(sys.path)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        yield
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    finally:
        sys.argv, sys.path[:] = before_arguments, before_path
