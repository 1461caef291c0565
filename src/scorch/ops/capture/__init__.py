"""Calls on sparse tensors as operators of the graphs that ``torch.compile`` and ``torch.export`` make."""

from scorch.ops.capture import neighbours, public  # noqa: F401 - they define operators
from scorch.ops.capture.record import record
from scorch.tensor.flatten import RECORD

__all__ = ["record"]

RECORD.append(record)
