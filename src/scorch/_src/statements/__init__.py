"""Run ``einsum`` and ``evaluate``, with higher-order gradients."""
