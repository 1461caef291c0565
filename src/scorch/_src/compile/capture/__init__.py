"""Make calls on sparse tensors operators of the graphs of ``torch.compile`` and ``torch.export``."""

from scorch._src.compile.capture import function_operators  # noqa: F401 - it defines operators
from scorch._src.compile.capture.trace import record
from scorch._src.tensor.hooks import hooks

__all__ = ["record"]

hooks.record = record
