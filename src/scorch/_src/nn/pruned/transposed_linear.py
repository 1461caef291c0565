"""Linear layers whose dense weight is stored (in, out), like ``transformers.pytorch_utils.Conv1D``."""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.nn.sparse_linear import SparseLinear
from scorch._src.tensor.sparse_tensor import SparseTensor


def is_transposed_linear(module: torch.nn.Module) -> bool:
    """Whether a module is Hugging Face's ``Conv1D``, or has its name and computes the same."""
    weight = getattr(module, "weight", None)
    if type(module).__name__ != "Conv1D" or not isinstance(weight, torch.Tensor) or weight.dim() != 2:
        return False
    return weight.shape[1] == getattr(module, "nf", None)


class SparseTransposedLinear(SparseLinear):
    """A ``SparseLinear`` that replaces Hugging Face's ``Conv1D``, and loads its weights (in, out).

    ``weight`` is (out, in), as in any ``SparseLinear``.
    """

    dense_class: Any  # what it is in the place of

    @classmethod
    def from_layer(cls, weight: SparseTensor, layer: torch.nn.Module) -> SparseTransposedLinear:
        """Return a layer with this weight (out, in), and the bias of ``layer``."""
        made = cls.from_weight(weight, layer.bias)  # type: ignore[arg-type]
        assert isinstance(made, SparseTransposedLinear)
        made.dense_class = type(layer)
        return made

    @property
    def nf(self) -> int:
        """The number of outputs."""
        return self.out_features

    @property
    def nx(self) -> int:
        """The number of inputs."""
        return self.in_features

    def to_dense(self) -> Any:
        """Return a layer of the original class with the same weight."""
        layer = self.dense_class(self.out_features, self.in_features).to(self.bias.dtype)  # type: ignore[union-attr]
        with torch.no_grad():
            layer.weight.copy_(self.weight.detach().to_dense().t())
            layer.bias.copy_(self.bias)
        return layer

    def _values_from_weight(self, weight: torch.Tensor, prefix: str, error_msgs: list[str]) -> torch.Tensor:
        return super()._values_from_weight(weight.t(), prefix, error_msgs)
