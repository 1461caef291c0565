"""Made by tests/make_stubs.py for torch 2.13.0; do not edit."""

from torch.autograd.functional import (
    fwAD as fwAD,
    hessian as hessian,
    hvp as hvp,
    jacobian as jacobian,
    jvp as jvp,
    torch as torch,
    vhp as vhp,
    vjp as vjp,
)
