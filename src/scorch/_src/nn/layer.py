"""Base classes of modules: they say what is wrong with the arguments of a call, as functions of Scorch do.

``torch.jit.trace`` records PyTorch's operators. Kernels are none, so their results would become constants,
and the recorded program would ignore its input: layers that run kernels refuse it, and ``torch.jit.script``.
"""

from __future__ import annotations

import inspect
from typing import Any, NoReturn

from torch.nn import Module

from scorch._src.grad_state import unsupported_in_jit
from scorch._src.name_hints import check_keywords, keywords_of

_OF_KEYWORDS = "unexpected keyword argument", "multiple values for argument"
_call_of_modules = Module.__call__


class Layer(Module):
    """Base class of all modules of Scorch."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module as torch does, in as many steps; explain unknown keyword arguments."""
        try:
            if self._compiled_call_impl is None and Module.__call__ is _call_of_modules:
                return self._call_impl(*args, **kwargs)
            return super().__call__(*args, **kwargs)  # of torch.compile, or of what traces all modules
        except TypeError as error:
            if any(words in str(error) for words in _OF_KEYWORDS):  # those of other errors may be of hooks
                _check_keywords_of_call(self, kwargs)
            raise


class KernelLayer(Layer):
    """Base class of layers that run kernels."""

    def _slow_forward(self, *inputs: Any, **options: Any) -> Any:
        """Refuse the call: torch makes it in place of ``forward`` only while a trace is recorded."""
        raise unsupported_in_jit(self._get_name())

    def __prepare_scriptable__(self) -> NoReturn:
        """Refuse ``torch.jit.script``, which calls this of all modules in what it compiles."""
        raise unsupported_in_jit(self._get_name())


def _check_keywords_of_call(layer: Module, given: dict[str, Any]) -> None:
    """Refuse a keyword argument that ``forward`` does not have."""
    try:
        parameters = inspect.signature(layer.forward).parameters.values()
    except ValueError:  # a builtin in its place
        return
    if all(each.kind is not each.VAR_KEYWORD for each in parameters):
        check_keywords(f"{type(layer).__name__}.forward", given, keywords_of(layer.forward))
