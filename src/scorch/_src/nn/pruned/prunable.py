"""The kinds of layers that ``scorch.sparsify`` stores sparse, and which of their weights are matrices.

A sparse layer holds a ``SparseLinear`` for each matrix (``tables_of``), under the name that its ``Part`` has.
A new kind of layer is an entry of ``KINDS``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from scorch._src.dataclass import dataclass
from scorch._src.nn.multihead_attention import MultiheadAttention
from scorch._src.nn.pruned.sparse_attention import SparseMultiheadAttention, has_one_size, input_projections
from scorch._src.nn.pruned.sparse_conv import SparseConv1d, SparseConv2d, SparseConvNd
from scorch._src.nn.pruned.sparse_recurrent import SparseRecurrent, SparseRecurrentCell, matrices_of
from scorch._src.nn.pruned.transposed_linear import SparseTransposedLinear, is_transposed_linear
from scorch._src.nn.sparse_embedding import SparseEmbedding
from scorch._src.nn.sparse_inputs import Linear
from scorch._src.nn.sparse_layer import SparseLayer
from scorch._src.nn.sparse_linear import SparseLinear
from scorch._src.tensor.sparse_tensor import SparseTensor

Weights = Mapping[str, SparseTensor]  # by the names of their tables
TIMM_LINEAR = "timm.layers.linear.Linear"
EXAMPLE_ROWS = (1, 32, 512)  # a token, a batch, and the tokens of a few sentences
EXAMPLE_PIXELS, EXAMPLE_TOKENS, EXAMPLE_STEPS = 14, 64, 16  # of inputs where the caller gives none


@dataclass(frozen=True)
class Part:
    """A weight of a dense layer, and the name of the matrix that stores it sparse."""

    table: str  # empty where the sparse layer is the table itself
    owner: torch.nn.Module
    name: str = "weight"
    bias: str = "bias"  # of the owner, which becomes that of the table
    is_transposed: bool = False

    @property
    def parameter(self) -> torch.Tensor:
        """The parameter, also where ``torch.nn.utils.prune`` computes the weight from it."""
        found: Any = getattr(self.owner, f"{self.name}_orig", None)
        return getattr(self.owner, self.name) if found is None else found  # type: ignore[no-any-return]

    @property
    def matrix(self) -> torch.Tensor:
        """The weight as a matrix with one row per output."""
        return self.as_matrix(getattr(self.owner, self.name).detach())

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """The shape of the matrix, known without its elements."""
        rows, *columns = getattr(self.owner, self.name).shape
        size = math.prod(columns)
        return (size, rows) if self.is_transposed else (rows, size)

    def as_matrix(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.t() if self.is_transposed else weight.flatten(1)

    def from_matrix(self, matrix: torch.Tensor) -> torch.Tensor:
        """Return a matrix in the shape of the weight."""
        shape = getattr(self.owner, self.name).shape
        return matrix.t() if self.is_transposed else matrix.reshape(shape)


@dataclass(frozen=True)
class Kind:
    """How layers of a kind become sparse.

    ``example(layer, batch, options)`` returns the arguments of a call; ``options`` are dtype and device;
    ``inputs`` says in words what a batch of these consists of.
    """

    parts: Callable[[Any], list[Part]]
    make: Callable[[Any, Weights], torch.nn.Module]
    example: Callable[[Any, int, dict[str, Any]], tuple[Any, ...]]
    inputs: str
    takes_any_format: bool = True
    takes_any_weight_dtype: bool = False  # sums are in another type than the values that are stored
    batches: tuple[int, ...] = (1, 32)  # that layers are timed with where the caller names none


def _one_part(table: str, is_transposed: bool = False) -> Callable[[Any], list[Part]]:
    return lambda layer: [Part(table, layer, is_transposed=is_transposed)]


def _attention_parts(layer: torch.nn.MultiheadAttention) -> list[Part]:
    parts = [Part(table, layer, name, bias="") for table, name in input_projections(layer).items()]
    return [*parts, Part("out_proj", layer.out_proj)]


def _recurrent_parts(layer: torch.nn.Module) -> list[Part]:
    return [Part(table, layer, weight, bias) for table, (weight, bias) in matrices_of(layer).items()]


def _rows(size: int, batch: int, options: dict[str, Any]) -> tuple[Any, ...]:
    return (torch.ones(batch, size, **options),)


def _images(layer: Any, batch: int, options: dict[str, Any]) -> tuple[Any, ...]:
    reach = [d * (k - 1) + 1 for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
    size = [max(EXAMPLE_PIXELS, pixels) for pixels in reach]
    return (torch.ones(batch, layer.in_channels, *size, **options),)


def _tokens(layer: Any, batch: int, options: dict[str, Any]) -> tuple[Any, ...]:
    leading = (batch, EXAMPLE_TOKENS) if layer.batch_first else (EXAMPLE_TOKENS, batch)
    query = torch.ones(*leading, layer.embed_dim, **options)
    if has_one_size(layer):
        return query, query, query, None, False
    key, value = (torch.ones(*leading, size, **options) for size in (layer.kdim, layer.vdim))
    return query, key, value, None, False


def _steps(layer: Any, batch: int, options: dict[str, Any]) -> tuple[Any, ...]:
    leading = (batch, EXAMPLE_STEPS) if layer.batch_first else (EXAMPLE_STEPS, batch)
    return (torch.ones(*leading, layer.input_size, **options),)


def _indices(layer: Any, batch: int, options: dict[str, Any]) -> tuple[Any, ...]:
    return (torch.arange(batch, device=options["device"]) * 7919 % max(layer.num_embeddings, 1),)


_LINEAR = Kind(
    _one_part(""),
    lambda layer, weights: SparseLinear.from_weight(weights[""], layer.bias),
    lambda layer, batch, options: _rows(layer.in_features, batch, options),
    "rows in linear layers",
    takes_any_weight_dtype=True,
    batches=EXAMPLE_ROWS,
)
_TRANSPOSED = Kind(
    _one_part("", is_transposed=True),
    lambda layer, weights: SparseTransposedLinear.from_layer(weights[""], layer),
    lambda layer, batch, options: _rows(layer.nx, batch, options),
    "rows in linear layers",
    takes_any_weight_dtype=True,
    batches=EXAMPLE_ROWS,
)
_EMBEDDING = Kind(
    _one_part("table"),
    lambda layer, weights: SparseEmbedding.from_weight(weights["table"], layer.padding_idx),
    _indices,
    "indices in embeddings",
    takes_any_format=False,
)
_ATTENTION = Kind(
    _attention_parts,
    lambda layer, weights: SparseMultiheadAttention.from_weights(dict(weights), layer),
    _tokens,
    f"sequences of {EXAMPLE_TOKENS} tokens in attention",
    takes_any_weight_dtype=True,
)
_RECURRENT = Kind(
    _recurrent_parts,
    lambda layer, weights: SparseRecurrent.from_weights(dict(weights), layer),
    _steps,
    f"sequences of {EXAMPLE_STEPS} time steps in recurrent layers",
)
_CELL = Kind(
    _recurrent_parts,
    lambda layer, weights: SparseRecurrentCell(dict(weights), layer),
    lambda layer, batch, options: _rows(layer.input_size, batch, options),
    "rows in recurrent cells",
)


def _convolution(kind: type[SparseConvNd]) -> Kind:
    return Kind(
        _one_part("kernels"),
        lambda layer, weights: kind.from_weight(weights["kernels"], layer),
        _images,
        f"images of {EXAMPLE_PIXELS} pixels along each dimension in convolutions",
        takes_any_format=False,
    )


KINDS: dict[type, Kind] = {  # of the classes themselves: a subclass may compute otherwise
    torch.nn.Linear: _LINEAR,
    Linear: _LINEAR,
    torch.nn.Embedding: _EMBEDDING,
    torch.nn.Conv1d: _convolution(SparseConv1d),
    torch.nn.Conv2d: _convolution(SparseConv2d),
    torch.nn.MultiheadAttention: _ATTENTION,
    MultiheadAttention: _ATTENTION,
    torch.nn.LSTM: _RECURRENT,
    torch.nn.GRU: _RECURRENT,
    torch.nn.RNN: _RECURRENT,
    torch.nn.LSTMCell: _CELL,
    torch.nn.GRUCell: _CELL,
    torch.nn.RNNCell: _CELL,
}
_KINDS_OF_SPARSE: dict[type, Kind] = {
    SparseEmbedding: _EMBEDDING,
    SparseTransposedLinear: _TRANSPOSED,
    SparseLinear: _LINEAR,
    SparseConvNd: KINDS[torch.nn.Conv2d],
    SparseMultiheadAttention: _ATTENTION,
    SparseRecurrent: _RECURRENT,
    SparseRecurrentCell: _CELL,
}


def kind_of_layer(layer: torch.nn.Module) -> Kind | None:
    """Return how a dense layer becomes sparse; None if it cannot."""
    if is_transposed_linear(layer):
        return _TRANSPOSED
    return _LINEAR if _is_linear_of_timm(layer) else KINDS.get(type(layer))


def parts_of(layer: torch.nn.Module) -> list[Part]:
    """Return the weights of a dense layer that can be stored sparse."""
    kind = kind_of_layer(layer)
    return [] if kind is None else kind.parts(layer)


def _is_linear_of_timm(layer: torch.nn.Module) -> bool:
    """Whether a layer is of timm's subclass of ``torch.nn.Linear``, which computes the same."""
    kind = type(layer)
    return kind.__base__ is torch.nn.Linear and f"{kind.__module__}.{kind.__name__}" == TIMM_LINEAR


def kind_of_sparse_layer(layer: torch.nn.Module) -> Kind:
    """Return how a layer became sparse."""
    return next(kind for sparse, kind in _KINDS_OF_SPARSE.items() if isinstance(layer, sparse))


def is_sparse_layer(module: torch.nn.Module) -> bool:
    """Whether a module has sparse weights."""
    return isinstance(module, SparseLayer)


def walk_layers(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, bool]]:
    """Yield modules, their names and whether they are, or can be, sparse layers, whose parts are left out."""
    inside: set[torch.nn.Module] = set()
    for name, module in model.named_modules():
        if module in inside:
            continue
        is_layer = is_sparse_layer(module) or kind_of_layer(module) is not None
        if is_layer:
            inside.update(module.modules())
        yield name, module, is_layer


def tables_of(layer: Any) -> dict[str, SparseLinear]:
    """Return the sparse matrices of a sparse layer by name."""
    return layer.matrices()  # type: ignore[no-any-return]


def example_call(
    layer: torch.nn.Module, batch: int, dtype: torch.dtype | None = None
) -> Callable[[], object]:
    """Return a call of a dense or sparse layer on a batch of inputs of its kind and dtype."""
    kind = kind_of_layer(layer) or kind_of_sparse_layer(layer)
    options = {"dtype": dtype or input_dtype(layer), "device": next(layer.parameters()).device}
    arguments = kind.example(layer, batch, options)
    return lambda: layer(*arguments)


def input_dtype(layer: torch.nn.Module) -> torch.dtype:
    """Return the dtype that a layer computes in, the widest of its own: weights may have fewer bits."""
    tensors = (*layer.parameters(), *layer.buffers())
    own = {tensor.dtype for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()}
    return functools.reduce(torch.promote_types, own)


def dense_weights(layer: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield the weights of a dense layer that may be stored sparse."""
    for part in parts_of(layer):
        yield getattr(part.owner, part.name)
