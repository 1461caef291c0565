"""A sparse autoencoder built on ``topk_sparse``."""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.name_hints import suggests_keywords
from scorch._src.nn.layer import KernelLayer
from scorch._src.nn.pattern import check_features
from scorch._src.nn.pruned.fused_modules import has_hooks
from scorch._src.ops.sorting.topk import topk_sparse
from scorch._src.statements.operands import as_differentiable
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, is_integer


class TopKAutoencoder(KernelLayer):
    """A sparse autoencoder that keeps the top ``k`` features per input and decodes only these.

    The codes are the ``k`` largest elements of ``relu(encoder.weight @ (x - bias) + encoder.bias)``, and the
    reconstruction is ``codes @ decoder + bias``. The codes are a sparse matrix, so decoding reads only ``k``
    rows of the decoder per input, forward and backward.

    The parameters are ``encoder.weight`` and ``decoder``, of shape ``(features, in_features)``,
    ``encoder.bias`` of length ``features``, and ``bias`` of length ``in_features``. Both biases start at
    zero, and the rows of ``decoder`` as random unit vectors; training does not keep them normalized.

    Args:
        in_features: the size of an input.
        features: the number of features in the dictionary.
        k: the number of features to keep per input.
        abs: whether to select features by magnitude, without ``relu``; otherwise codes are non-negative.
        tied: whether to initialize ``encoder.weight`` with ``decoder``; otherwise as ``torch.nn.Linear``.
        device: the device of the parameters.
        dtype: the dtype of the parameters.

    Raises:
        ArgumentError: ``k`` is not between 1 and ``features``.

    Example:

        >>> import torch, scorch
        >>> model = scorch.nn.TopKAutoencoder(16, 256, k=4)
        >>> x = torch.ones(8, 16)
        >>> model.encode(x).nnz, model(x).shape
        (32, torch.Size([8, 16]))
    """

    @suggests_keywords
    def __init__(
        self,
        in_features: int,
        features: int,
        k: int,
        *,
        abs: bool = False,
        tied: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not is_integer(k, 1, features):
            raise ArgumentError(f"k must be between 1 and {features}, the number of features, but got {k!r}")
        super().__init__()
        self.k, self.abs = k, abs
        self.encoder = torch.nn.Linear(in_features, features, device=device, dtype=dtype)
        weight = torch.nn.functional.normalize(torch.randn(features, in_features, device=device, dtype=dtype))
        self.decoder = torch.nn.Parameter(weight)
        self.bias = torch.nn.Parameter(torch.zeros(in_features, device=device, dtype=dtype))
        with torch.no_grad():
            self.encoder.bias.zero_()
            if tied:
                self.encoder.weight.copy_(self.decoder)

    def encode(self, input: torch.Tensor) -> SparseTensor:
        """Return the codes of a batch of inputs: a ``csr`` matrix with one row per input."""
        features = self._features(input)
        return topk_sparse(features if self.abs else features.relu(), self.k, abs=self.abs)

    def codes(self, input: torch.Tensor) -> SparseTensor:
        """Return ``encode(input)``."""
        return self.encode(input)

    def _features(self, input: torch.Tensor) -> torch.Tensor:
        encoder, input = self.encoder, as_differentiable("input", input)
        check_features(input, self.decoder.shape[1])
        if not isinstance(input, SparseTensor) or type(encoder) is not torch.nn.Linear or has_hooks(encoder):
            return encoder(input - self.bias)  # type: ignore[no-any-return]
        weight = encoder.weight  # subtracting after the product keeps the input sparse
        return torch.nn.functional.linear(input, weight, encoder.bias - weight @ self.bias)

    def decode(self, codes: SparseTensor) -> torch.Tensor:
        """Reconstruct inputs from their codes."""
        check_features(codes, self.decoder.shape[0], "code matrix")
        output: torch.Tensor = codes @ self.decoder + self.bias
        return output

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the reconstruction of ``input``."""
        return self.decode(self.encode(input))

    def extra_repr(self) -> str:
        return f"k={self.k}, features={self.decoder.shape[0]}"
