"""A sparse autoencoder with ``topk_sparse``."""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.ops.sorting.topk import topk_sparse
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError


class TopKAutoencoder(torch.nn.Module):
    """A sparse autoencoder: keeps ``k`` of all features for each input, and decodes only these.

    ``codes(x)`` is the sparse matrix of features, ``model(x)`` the reconstruction. Features are not
    negative, unless they are selected by magnitude, with ``abs``. Decoding, and all gradients of the decoder,
    cost what ``k`` of its rows cost for each input.

    >>> import torch, scorch
    >>> model = scorch.nn.TopKAutoencoder(16, 256, k=4)
    >>> x = torch.ones(8, 16)
    >>> model.codes(x).nnz, model(x).shape
    (32, torch.Size([8, 16]))
    """

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
        if isinstance(k, bool) or not isinstance(k, int) or not 0 < k <= features:
            raise ArgumentError(f"k is a number from 1 to {features}, the number of features, not {k!r}")
        super().__init__()
        self.k, self.abs = k, abs
        self.encoder = torch.nn.Linear(in_features, features, device=device, dtype=dtype)
        weight = torch.nn.functional.normalize(torch.randn(features, in_features, device=device, dtype=dtype))
        self.decoder = torch.nn.Parameter(weight)
        self.bias = torch.nn.Parameter(torch.zeros(in_features, device=device, dtype=dtype))
        with torch.no_grad():
            self.encoder.bias.zero_()
            if tied:  # start from the transpose of the decoder
                self.encoder.weight.copy_(self.decoder)

    def codes(self, input: torch.Tensor) -> SparseTensor:
        """Return the features that are kept, ``csr``, a row for each input."""
        features = self.encoder(input - self.bias)
        return topk_sparse(features if self.abs else features.relu(), self.k, abs=self.abs)

    def decode(self, codes: SparseTensor) -> torch.Tensor:
        """Reconstruct inputs from features."""
        output: torch.Tensor = codes @ self.decoder + self.bias
        return output

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.decode(self.codes(input))

    def extra_repr(self) -> str:
        return f"k={self.k}, features={self.decoder.shape[0]}"
