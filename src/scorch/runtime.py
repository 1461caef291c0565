"""Deprecated: ``scorch.runtime.fill.release_memory`` is ``scorch.release_memory``."""

import types

from scorch._src.backends.cpu import launch
from scorch.errors import warn_deprecated


def _release_memory() -> int:
    warn_deprecated("scorch.runtime.fill.release_memory", "scorch.release_memory")
    return launch.release_memory()


fill = types.SimpleNamespace(release_memory=_release_memory)
