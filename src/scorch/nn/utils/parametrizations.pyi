"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from torch.nn.utils.parametrizations import (
    F as F,
    Module as Module,
    Tensor as Tensor,
    orthogonal as orthogonal,
    parametrize as parametrize,
    spectral_norm as spectral_norm,
    torch as torch,
    weight_norm as weight_norm,
)
