"""Run ``einsum`` and ``evaluate``, with gradients of any order."""
