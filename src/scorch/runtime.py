"""Deprecated: ``scorch.runtime.fill.release_memory`` is ``scorch.release_memory``."""

import types
import warnings

from scorch._src.backends.cpu import launch


def _release_memory() -> int:
    warnings.warn(
        "scorch.runtime.fill.release_memory is deprecated; use scorch.release_memory",
        DeprecationWarning,
        stacklevel=2,
    )
    return launch.release_memory()


fill = types.SimpleNamespace(release_memory=_release_memory)
