"""Routines of layers: products with sparse weights, and norms of one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch

from scorch._src.backends.by_torch.rows import Matrix, Tensor

# Takes the values, scales, bias and residual of a layer, and its input; None: one is not as it was.
BatchProduct = Callable[[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor], Tensor | None]
# Takes an input, the weight and the bias of a norm; None: one is not as it was.
NormFunction = Callable[[Tensor, Tensor | None, Tensor | None], Tensor | None]


class Layer(NamedTuple):
    """The product ``x @ weight.T + bias``, of arrays without gaps or gradients, and what follows it.

    Columns may be 16-bit integers without a sign, whose dtype is int16 all the same, or the 8-bit integers
    that ``Routines.pack_positions`` returns. Values may be those of ``Routines.stored_batch_dtypes``, int8
    with ``scales`` of the rows. ``activation``, one of relu, gelu, gelu_tanh and silu, is applied to the
    result, and ``residual`` added to that. The weight may have blocks of a size in ``Routines.batch_blocks``,
    whose sizes divide its own.
    """

    weight: Matrix
    bias: Tensor | None
    x: Tensor
    scales: Tensor | None = None
    activation: str | None = None
    residual: Tensor | None = None
    block: tuple[int, int] = (1, 1)


class Norm(NamedTuple):
    """``layer_norm`` of each ``width`` numbers of arrays without gaps; ``rms_norm`` unless ``is_centered``.

    A bias comes with a weight only.
    """

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    width: int
    is_centered: bool


class LayerRoutines:
    """Multiply by sparse weights, and normalize."""

    batch_dtypes: tuple[torch.dtype, ...] = ()  # of ``multiply_batch``
    batch_blocks: tuple[tuple[int, int], ...] = ((1, 1),)
    stored_batch_dtypes: Mapping[torch.dtype, tuple[torch.dtype, ...]] = MappingProxyType({})  # of its values
    group_dtypes: tuple[torch.dtype, ...] = ()  # of ``multiply_groups``
    norm_dtypes: tuple[torch.dtype, ...] = ()  # of ``bind_norm``

    def multiply_batch(self, layer: Layer) -> Tensor | None:
        """Compute what a layer does to a batch; None: a kernel must."""
        del layer
        return None

    def bind_batch(self, layer: Layer) -> BatchProduct | None:
        """Return ``multiply_batch`` for tensors of the same dtypes and shapes; None: it cannot be.

        The function reads the memory that its arguments have when it is called.
        """
        del layer
        return None

    def reads_positions(self, dtype: torch.dtype, batch: int, density: float) -> bool:
        """Whether ``multiply_batch`` reads what ``pack_positions`` returns faster than columns."""
        del dtype, batch, density
        return False

    def pack_positions(self, pos: Tensor, crd: Tensor, columns: int) -> Tensor | None:
        """Return integers that ``multiply_batch`` takes in place of columns; None without N:M sparsity."""
        del pos, crd, columns
        return None

    def multiply_groups(
        self,
        weight: Matrix,
        table: Tensor,
        bias: Tensor | None,
        x: Tensor,
        scales: Tensor | None = None,
        activation: str | None = None,
        residual: Tensor | None = None,
    ) -> Tensor | None:
        """Compute ``multiply_batch`` of one row by a weight that stores four of every eight columns.

        In place of columns it has a code for each eight, which counts rows of ``table``; these have 16 bytes:
        for each byte of four values of 32 bits, its number among the bytes of the eight that they meet.
        """
        del weight, table, bias, x, scales, activation, residual
        return None

    def bind_norm(self, norm: Norm) -> NormFunction | None:
        """Return a function that normalizes tensors of these dtypes and shapes; None where torch is as fast.

        The function returns None for a tensor of another dtype or shape, or with gaps.
        """
        del norm
        return None
