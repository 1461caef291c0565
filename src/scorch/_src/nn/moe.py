"""Mixtures of experts: a sparse gate assigns tokens to experts, and no token is dropped.

The gate is a sparse matrix with a row for each token and a column for each expert. Tokens are gathered by its
columns, so that each expert runs on a slice of its own; the results are combined by a product with a sparse
matrix that has the gate's values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.name_hints import suggests_keywords
from scorch._src.nn.layer import KernelLayer
from scorch._src.nn.masks import csr_from_rows
from scorch._src.nn.pattern import check_features
from scorch._src.ops.sorting.topk import find_largest, from_positions
from scorch._src.tensor.autograd import values_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, ShapeError, UnsupportedError, is_integer


class TopKGate(KernelLayer):
    """A gate that assigns each token to its ``k`` most likely experts.

    Returns the probabilities as a ``csr`` matrix of shape (tokens, experts). ``balance_loss`` is the
    load-balancing loss of the last call: 1 if all experts are used equally, more if not.

    Args:
        in_features: the size of a token.
        experts: the number of experts.
        k: the number of experts per token.
        renormalize: whether to scale the probabilities of the chosen experts to a sum of one.
        noise: the standard deviation of the noise that is added to the scores in training.
        device: the device of the parameters.
        dtype: the dtype of the parameters.

    Raises:
        ArgumentError: ``k`` is not between 1 and ``experts``.

    Example:

        >>> import torch, scorch
        >>> gate = scorch.nn.TopKGate(16, experts=8, k=2)
        >>> gate(torch.ones(4, 16)).nnz
        8
    """

    balance_loss: torch.Tensor

    @suggests_keywords
    def __init__(
        self,
        in_features: int,
        experts: int,
        k: int = 2,
        *,
        renormalize: bool = True,
        noise: float = 0.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not is_integer(k, 1, experts):
            raise ArgumentError(f"k must be between 1 and {experts}, the number of experts, but got {k!r}")
        super().__init__()
        self.experts, self.k, self.renormalize, self.noise = experts, k, renormalize, noise
        self.score = torch.nn.Linear(in_features, experts, bias=False, device=device, dtype=dtype)
        self.balance_loss = torch.zeros((), dtype=dtype, device=device)

    def forward(self, tokens: torch.Tensor) -> SparseTensor:
        """Return the gates of ``tokens``, a matrix with one row per token."""
        if tokens.dim() != 2:
            raise ShapeError(
                f"the gate expected a matrix with one row per token, but got shape {tuple(tokens.shape)}"
            )
        check_features(tokens, self.score.in_features)
        scores = self.score(tokens)
        if self.noise and self.training:
            scores = scores + self.noise * torch.randn_like(scores)
        probabilities = torch.softmax(scores, -1)
        chosen_experts = find_largest(probabilities, self.k)
        self.balance_loss = _compute_balance_loss(chosen_experts, probabilities)
        values = probabilities.gather(-1, chosen_experts)
        if self.renormalize:
            values = values / values.sum(1, keepdim=True)
        return from_positions(chosen_experts, values, tuple(probabilities.shape))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and files: the last loss is detached."""
        return {**self.__dict__, "balance_loss": self.balance_loss.detach()}

    def extra_repr(self) -> str:
        return f"experts={self.experts}, k={self.k}, renormalize={self.renormalize}"


def _compute_balance_loss(chosen_experts: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
    """Sum the fraction of tokens of each expert times its mean probability, and scale."""
    tokens, experts = probabilities.shape
    flat = chosen_experts.reshape(-1)
    counts = probabilities.new_zeros(experts).index_add(0, flat, probabilities.new_ones(flat.shape))
    return experts * (counts / max(flat.numel(), 1) * probabilities.sum(0) / max(tokens, 1)).sum()


class MoE(KernelLayer):
    """A mixture of experts in which each token uses ``k`` experts and none is dropped.

    The gradients are those of computing all experts and multiplying the results of those that were not chosen
    by zero. Add ``balance_loss`` to the loss, with a small factor, so that all experts are used.

    Args:
        features: the size of a token.
        experts: the number of experts, each a network with one hidden layer, or a list of modules.
        k: the number of experts per token.
        hidden: the size of the hidden layer, ``4 * features`` by default.
        gate: a module that returns a sparse matrix of shape (tokens, experts), ``TopKGate`` by default.
        device: the device of the parameters.
        dtype: the dtype of the parameters.

    Raises:
        ArgumentError: there are no experts, or ``k`` is not between 1 and their number.

    Example:

        >>> import torch, scorch
        >>> layer = scorch.nn.MoE(16, experts=8, k=2, hidden=32)
        >>> layer(torch.ones(4, 10, 16)).shape
        torch.Size([4, 10, 16])
    """

    @suggests_keywords
    def __init__(
        self,
        features: int,
        experts: int | Sequence[torch.nn.Module],
        k: int = 2,
        *,
        hidden: int | None = None,
        gate: torch.nn.Module | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory_options = {"device": device, "dtype": dtype}
        hidden_features = 4 * features if hidden is None else hidden
        if isinstance(experts, int):
            experts = [
                torch.nn.Sequential(
                    torch.nn.Linear(features, hidden_features, **factory_options),
                    torch.nn.GELU(),
                    torch.nn.Linear(hidden_features, features, **factory_options),
                )
                for _ in range(experts)
            ]
        if not experts:
            raise ArgumentError("MoE needs at least one expert")
        self.features = features
        self.experts = torch.nn.ModuleList(experts)
        self.gate = TopKGate(features, len(experts), k, **factory_options) if gate is None else gate

    @property
    def balance_loss(self) -> torch.Tensor:
        """The load-balancing loss of the gate in the last call."""
        loss: torch.Tensor = self.gate.balance_loss  # type: ignore[assignment]
        return loss

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the outputs for ``input``, whose last dimension has ``features`` elements."""
        check_features(input, self.features)
        if torch.compiler.is_exporting():
            raise UnsupportedError(
                "a MoE cannot be exported: the number of tokens per expert depends on the data; "
                "export the gate and the experts separately"
            )
        tokens = input.reshape(-1, self.features)
        gates = self.gate(tokens)
        shape = (tokens.shape[0], len(self.experts))
        if not isinstance(gates, SparseTensor) or tuple(gates.shape) != shape:
            raise ShapeError(
                f"the gate returned shape {tuple(gates.shape)}; expected a sparse matrix of shape {shape}"
            )
        output = _run_experts(gates, tokens, self.experts)
        return output.reshape(*input.shape[:-1], output.shape[-1])


def _run_experts(gates: SparseTensor, tokens: torch.Tensor, experts: torch.nn.ModuleList) -> torch.Tensor:
    stored = gates if str(gates.format) == "csr" else gates.to_format("csr")
    assert isinstance(stored, SparseTensor)
    pattern = stored.storage.pattern
    begins, columns = pattern.pos[1], pattern.crd[1]
    assert begins is not None and columns is not None
    expert, count = columns.to(torch.int64), columns.numel()
    token = torch.arange(tokens.shape[0], device=begins.device).repeat_interleave(
        begins.diff().to(torch.int64)
    )
    order = expert.argsort(stable=True)
    slices = tokens[token[order]].split(torch.bincount(expert, minlength=len(experts)).tolist())
    results = torch.cat([module(inputs) for module, inputs in zip(experts, slices, strict=True)])
    position = torch.empty_like(order)
    position[order] = torch.arange(count, device=order.device)  # increases within a token, as its experts do
    return csr_from_rows(begins, position, values_of(stored), (tokens.shape[0], count)) @ results
