"""Layers that ``torch.jit.trace`` refuses to record.

A trace consists of PyTorch's operators. The kernels of Scorch are none, so their results would become
constants, and the recorded program would ignore its input.
"""

from __future__ import annotations

from typing import Any

from scorch._src.nn.layer import Layer
from scorch._src.tensor.autograd import unsupported_in_jit


class Untraced(Layer):
    """Base class of layers that run kernels."""

    def _slow_forward(self, *inputs: Any, **options: Any) -> Any:
        """Refuse the call: torch makes it in place of ``forward`` only while a trace is recorded."""
        raise unsupported_in_jit(self._get_name())
