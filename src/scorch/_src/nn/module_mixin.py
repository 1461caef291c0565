"""Mixins for modules that exist already: they get a class that is theirs with a mixin in front of it.

PyTorch and other libraries create the modules, so that Scorch can only replace their class afterwards. The
new class has the name of the old one where it is printed, and pickles name the old one. Two layers of
PyTorch, ``DistributedDataParallel`` and ``AveragedModel``, look at a module when they wrap it: their class
is replaced right before, since PyTorch calls a hook whenever a module becomes a submodule of another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch.nn.modules.module import register_module_module_registration_hook


class ModuleMixin(torch.nn.Module):
    """Base class of mixins, which come before a class of modules among the bases.

    A class that is declared, ``class FusedRMSNorm(FusedNorm, torch.nn.RMSNorm)``, is pickled by its own name;
    one that ``class_for`` made by ``restore``, which the module of its mixin defines, and the original class.
    """

    restore: Callable[[Any], Any]  # returns a module of the class for another one, without attributes
    _original: type[torch.nn.Module]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        *mixins, last = cast(Any, cls.__bases__)
        if mixins and not issubclass(last, ModuleMixin):
            cls._original = last

    @classmethod
    def class_for(cls, kind: type) -> Any:
        """Return the class that is ``kind`` with this mixin in front of it."""
        known = (each for each in cls.__subclasses__() if getattr(each, "_original", None) is kind)
        return next(known, None) or cls._make_class(kind)

    @classmethod
    def _make_class(cls, kind: type) -> type:
        def reduce(module: torch.nn.Module, protocol: Any) -> tuple[Any, ...]:
            has_state = hasattr(module, "__getstate__")  # not in Python 3.10
            return cls.restore, (kind,), module.__getstate__() if has_state else vars(module)

        own = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
        return type(kind.__name__, (cls, kind), {**own, "__reduce_ex__": reduce})

    @classmethod
    def new(cls, kind: type) -> Any:
        """Return a module of ``class_for(kind)`` without attributes, for copies and pickles."""
        replaced = cls.class_for(kind)
        return replaced.__new__(replaced)

    def _get_name(self) -> str:
        name = super()._get_name()
        return self._original.__name__ if name == type(self).__name__ else name


def original_class(module: torch.nn.Module) -> type[torch.nn.Module]:
    """Return the class that a module had before a mixin was put in front of it."""
    kind = type(module)
    return vars(kind).get("_original", kind)  # type: ignore[no-any-return]


class WrapperMixin(ModuleMixin):
    """Base class of mixins for modules that wrap another one, ``self.module``."""

    wrapper: type[torch.nn.Module]  # the class of PyTorch

    @staticmethod
    def is_needed(wrapper: Any, module: torch.nn.Module) -> bool:
        """Whether a wrapper needs the mixin for the module that it is about to wrap."""
        raise NotImplementedError

    def prepare(self, module: torch.nn.Module) -> None:
        """Do what has to be done before PyTorch has looked at the module."""


def install(*mixins: type[WrapperMixin]) -> None:
    """Replace the classes of all wrappers created from now on that need one of the mixins."""

    def on_registration(parent: torch.nn.Module, name: str, module: torch.nn.Module | None) -> None:
        if name != "module" or module is None:
            return
        for mixin in mixins:
            is_new = isinstance(parent, mixin.wrapper) and not isinstance(parent, mixin)
            if is_new and mixin.is_needed(parent, module):
                parent.__class__ = mixin.class_for(type(parent))
                parent.prepare(module)  # type: ignore[operator]

    register_module_module_registration_hook(on_registration)
