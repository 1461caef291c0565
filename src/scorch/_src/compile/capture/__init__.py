"""Calls on sparse tensors as operators of the graphs that ``torch.compile`` and ``torch.export`` make."""

from scorch._src.compile.capture import functions, graph_operators  # noqa: F401 - they define operators
from scorch._src.compile.capture.trace import record
from scorch._src.tensor.hooks import hooks

__all__ = ["record"]

hooks.record = record
