"""Aggregate over neighbors, with gradients: weighted sums, means, maxima, attention.

Each is one kernel over the rows of the graph; backward is one over its columns, kept as rows of the
transposed graph, so that both read rows of features in parallel and write each result once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.compiler import is_compiling

from scorch._src.backends.base import draw_seeds, is_served, routines_for
from scorch._src.backends.by_torch.graphs import Options, Scores
from scorch._src.backends.by_torch.rows import sum_rows, take_rows
from scorch._src.grad_state import (
    cached_outside_modes,
    is_composed,
    is_differentiable,
    is_grad_enabled,
    is_tracked_by_autograd_alone,
)
from scorch._src.ops.graph.graph import Graph, graph_of, is_tracked
from scorch._src.ops.products import matmul
from scorch._src.statements.autocast import check_same_dtype, without_autocast
from scorch._src.statements.autograd import SKIP_RESULT
from scorch._src.statements.call_cache import repeat_pair
from scorch._src.statements.evaluate import evaluate
from scorch._src.statements.operands import as_differentiable
from scorch._src.storage.storage import Storage
from scorch._src.tensor.autograd import apply, bind_apply, sparse_of, values_of
from scorch._src.tensor.create.check import advice_on, check_device
from scorch._src.tensor.sparse_tensor import TENSORS, SparseTensor
from scorch._src.torch_internals import any_requires_grad, is_any_autocast_enabled
from scorch.errors import OperandError, ShapeError, kind_of

Tensor = torch.Tensor
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def to_kernel_dtype(tensor: Tensor) -> Tensor:
    """Convert a dense tensor to a dtype that kernels compute in."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.to(torch.float32)


def to_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a dense tensor that has another dtype; ``.to`` takes longer to find that it has not."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


class WeightedGraph:
    """A graph with a number for each entry, as matrices: targets x sources, and transposed.

    ``tracked_values`` are those numbers if they require gradients.
    """

    def __init__(self, graph: Graph, values: torch.Tensor) -> None:
        self.graph, self.values = graph, values.detach()
        self.tracked_values = values if is_tracked(values) else None

    @cached_outside_modes
    def matrix(self) -> SparseTensor:
        return SparseTensor(Storage(self.graph.pattern, self.values))

    @cached_outside_modes
    def transposed(self) -> SparseTensor:
        graph, positions = self.graph.transposed
        values = self.values[positions]
        if graph.pos is self.graph.pos and torch.equal(values, self.values):
            return self.matrix
        return SparseTensor(Storage(graph.pattern, values))

    def with_dropout(self, dropout: float) -> WeightedGraph:
        """Return the graph with some of its numbers dropped, as ``torch.nn.functional.dropout`` does."""
        values = self.values if self.tracked_values is None else self.tracked_values
        return WeightedGraph(self.graph, F.dropout(values, dropout))

    def transpose_with(self, values: torch.Tensor) -> SparseTensor:
        """Return the transposed matrix, connected to ``values``, which are in the order of ``matrix``."""
        graph, positions = self.graph.transposed
        return sparse_of(graph.pattern, values[positions])


def sum_weighted(weighted: WeightedGraph, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``out[i,:] = w[i,j] * x[j,:] + bias`` in the dtype of ``x``, under autocast too."""
    values = weighted.tracked_values
    if is_composed(x, values, bias):
        matrix = weighted.matrix if values is None else sparse_of(weighted.graph.pattern, values)
        product = _multiply(matrix, x)
        return product if bias is None else product + bias
    if not is_differentiable(x, values, bias):
        return _multiply(weighted.matrix, x, bias)
    result: Tensor = _apply_weighted_sum(x, values, bias, weighted)
    return result


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, values: Tensor | None, bias: Tensor | None, weighted: WeightedGraph
    ) -> Tensor:
        ctx.weighted = weighted
        if values is not None:
            ctx.save_for_backward(x, values)
        if SKIP_RESULT.get():
            return x.new_zeros(()).expand(weighted.graph.shape[0], x.shape[1])
        return _multiply(weighted.matrix, x, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        weighted: WeightedGraph = ctx.weighted
        saved: Any = ctx.saved_tensors or (None, None)
        x, values = saved
        x_grad = values_grad = bias_grad = None
        if ctx.needs_input_grad[0]:
            is_fixed = values is None or not torch.is_grad_enabled()
            x_grad = _multiply(weighted.transposed if is_fixed else weighted.transpose_with(values), grad)
        if ctx.needs_input_grad[1]:
            values_grad = _sample_products(weighted.graph, grad, x)
        if ctx.needs_input_grad[2]:
            bias_grad = routines_for(grad).sum_columns(grad)
        return x_grad, values_grad, bias_grad, None


_apply_weighted_sum = bind_apply(_WeightedSum)


def _multiply(matrix: SparseTensor, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``matrix @ x``, to which a ``bias`` is added inplace."""
    product: Any = repeat_pair(matmul.MM, matrix, x) if type(x) in TENSORS else None
    if product is None:
        with without_autocast(x.device):
            product = matmul.mm(matrix, x)
    return product if bias is None else product.add_(bias)  # type: ignore[no-any-return]


def _sample_products(graph: Graph, rows: Tensor, columns: Tensor) -> Tensor:
    """Compute the inner products of ``rows`` and ``columns`` at each entry."""
    ones = SparseTensor(Storage(graph.pattern, torch.ones(graph.size, dtype=rows.dtype, device=rows.device)))
    with without_autocast(rows.device):
        products = evaluate("S[i,j] = M[i,j] * A[i,k] * B[j,k]", M=ones, A=rows, B=columns, format="csr")
    assert isinstance(products, SparseTensor)
    return values_of(products)


def dense_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute ``x @ weight.T + bias`` of dense tensors."""
    if bias is None or not _is_plainly_tracked(x, weight, bias):
        return F.linear(x, weight, bias)
    least = routines_for(x).min_summed
    if least is None or x.shape[0] * weight.shape[0] < least:
        return F.linear(x, weight, bias)
    result: Tensor = _apply_linear(x, weight, bias)
    return result


def _is_plainly_tracked(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether nothing but autograd tracks these dense matrices and the bias, and that tracks the bias."""
    if not is_grad_enabled() or is_any_autocast_enabled() or not bias.requires_grad:
        return False
    is_plain = type(x) in _PLAIN and type(weight) in _PLAIN and type(bias) in _PLAIN and x.dim() == 2
    return is_plain and is_tracked_by_autograd_alone()


class _Linear(torch.autograd.Function):
    """``torch.nn.functional.linear``, whose gradient of the bias is the device's own sum of columns."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            grad @ weight if needs_x else None,
            grad.t() @ x if needs_weight else None,
            routines_for(grad).sum_columns(grad) if needs_bias else None,
        )


_apply_linear = bind_apply(_Linear)


def sparse_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``x @ weight.T + bias``, where ``x`` may be sparse."""
    if not isinstance(x, SparseTensor):
        return dense_linear(x, weight, bias)
    if is_compiling() or is_tracked(x):
        return F.linear(x, weight, bias)
    if x.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ShapeError(f"x has shape {tuple(x.shape)}, but the weight expects {weight.shape[1]} features")
    check_same_dtype("x", x, weight)
    graph, values = graph_of(x, (x.shape[0], x.shape[1]))
    assert values is not None
    weighted = graph.cached(values, weight.dtype, _with_values, graph, values, weight.dtype)
    return sum_weighted(weighted, weight.t(), bias)


def _with_values(graph: Graph, values: Tensor, dtype: torch.dtype) -> WeightedGraph:
    return WeightedGraph(graph, values.to(dtype))


def maximum(graph: Graph, x: Tensor) -> Tensor:
    """Compute the maximum over the neighbors' rows of ``x``; zeros where there are none."""
    if is_composed(x):  # in PyTorch functions
        rows, columns = graph.edge_ends
        start = x.new_zeros(graph.shape[0], x.shape[1])
        positions = rows.unsqueeze(1).expand(-1, x.shape[1])
        return start.scatter_reduce(0, positions, x.index_select(0, columns), "amax", include_self=False)
    needs_grad = torch.is_grad_enabled() and x.requires_grad
    result: Tensor = apply(_NeighbourMax, x.contiguous(), graph, needs_grad)
    return result


class _NeighbourMax(torch.autograd.Function):
    """The maximum over neighbors; of several that reach it, each gets an equal part of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, graph: Graph, needs_grad: bool) -> Tensor:
        rows = graph.rows(x.dtype)
        maxima, ties = routines_for(x).neighbour_max((rows.pos, rows.crd, rows.counts), x, needs_grad)
        ctx.graph = graph
        if ties is not None:
            ctx.save_for_backward(x, maxima, ties)
        return maxima

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        x, maxima, ties = (tensor.detach() for tensor in ctx.saved_tensors)
        return apply(_SumWhereMax, (grad / ties).contiguous(), ctx.graph, maxima, x, True), None, None


class _SumWhereMax(torch.autograd.Function):
    """The sum of rows of ``flow`` along edges by which a source reaches the maximum of a target.

    They go from targets to sources in backward, else from sources to targets.
    """

    @staticmethod
    def forward(ctx: Any, flow: Tensor, graph: Graph, maxima: Tensor, x: Tensor, is_backward: bool) -> Tensor:
        ctx.inputs = graph, maxima, x, is_backward
        rows = graph.columns(x.dtype) if is_backward else graph.rows(x.dtype)
        ends = (x, maxima) if is_backward else (maxima, x)
        return routines_for(rows.pos).neighbour_max_backward((rows.pos, rows.crd, rows.counts), *ends, flow)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        graph, maxima, x, is_backward = ctx.inputs
        total = apply(_SumWhereMax, grad.contiguous(), graph, maxima, x, not is_backward)
        return total, None, None, None, None


def attend(graph: Graph, x: Tensor, scores: Scores, slope: float, dropout: float = 0.0) -> Tensor:
    """Sum the rows of ``x`` (sources, heads, features), weighted by a softmax over each target's sources.

    Scores are ``leaky_relu(sources[j,h] + targets[i,h] + edges[e,h], slope)``, with e the entry (i, j);
    ``dropout`` drops weights after softmax.
    """
    sources, targets, edges = scores
    if x.dim() != 3 or sources.shape != x.shape[:2] or targets.shape != (graph.shape[0], x.shape[1]):
        raise ShapeError(
            "attention expected x of shape (sources, heads, features) and scores of shape (nodes, heads), "
            f"but got {tuple(x.shape)}, {tuple(sources.shape)} and {tuple(targets.shape)}"
        )
    if is_composed(x, scores):
        return attend_composed(graph, x, scores, Options(slope, dropout))
    seed = draw_seeds(x.device, -(2**63), 2**63 - 1)[0] if dropout else 0
    inputs = [x.contiguous(), sources.contiguous(), targets.contiguous(), edges]
    needs_grad = torch.is_grad_enabled() and any_requires_grad(*inputs)
    result: Tensor = apply(_GraphAttention, graph, Options(slope, dropout, seed), needs_grad, *inputs)
    return result


class _GraphAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, graph: Graph, options: Options, needs_grad: bool, x: Tensor, *scores: Any
    ) -> Tensor:
        rows = graph.rows(x.dtype)
        result, saved = routines_for(x).graph_attention(rows, x, Scores(*scores), options, needs_grad)
        ctx.graph, ctx.options = graph, options
        if saved is not None:
            ctx.save_for_backward(x, *scores, saved)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        *inputs, saved = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, None, None, *_attend_double_backward(ctx, inputs, saved, grad)
        x, graph, grad = inputs[0], ctx.graph, grad.contiguous()
        scores = Scores(*inputs[1:])
        routines, options = routines_for(x), ctx.options
        rows, columns = graph.rows(x.dtype), graph.columns(x.dtype)
        edge_grad, target_grad = routines.graph_attention_scores_backward(
            rows, x, scores, options, saved, grad
        )
        x_grad, source_grad = routines.graph_attention_features_backward(
            columns, options, saved, edge_grad, grad
        )
        gradients = x_grad, source_grad, target_grad, None if scores.edges is None else edge_grad
        return None, None, None, *gradients


def _attend_double_backward(ctx: Any, inputs: Any, saved: Tensor, grad: Tensor) -> list[Tensor | None]:
    """Compute gradients that are differentiable again; the same weights are dropped."""
    is_kept = ~saved.signbit() if ctx.options.dropout else None
    result = attend_composed(ctx.graph, inputs[0], Scores(*inputs[1:]), ctx.options, is_kept)
    needed = ctx.needs_input_grad[-len(inputs) :]
    differentiated = [tensor for tensor, is_needed in zip(inputs, needed, strict=True) if is_needed]
    gradients = iter(torch.autograd.grad(result, differentiated, grad, create_graph=True))
    return [next(gradients) if is_needed else None for is_needed in needed]


def attend_composed(
    graph: Graph, x: Tensor, scores: Scores, options: Options, is_kept: Tensor | None = None
) -> Tensor:
    """Compute ``attend`` in functions that have all derivatives, with numbers for each entry and head.

    ``is_kept`` says which entries are not dropped, of each head; they are drawn otherwise.
    """
    rows, (sources, targets, edges) = graph.targets, scores
    total = take_rows(sources, graph.sources) + take_rows(targets, rows)
    total = F.leaky_relu(total if edges is None else total + edges, options.slope)
    weights = softmax_of_sources(graph, total)
    if is_kept is not None:
        weights = weights * is_kept * options.scale
    elif options.dropout:
        weights = F.dropout(weights, options.dropout)
    return sum_heads(graph, weights, x)


def softmax_of_sources(graph: Graph, scores: Tensor) -> Tensor:
    """Compute the softmax of ``scores`` (entries, heads) over the sources of each target."""
    rows, targets = graph.targets, graph.shape[0]
    positions = rows.unsqueeze(1).expand(-1, scores.shape[1])
    maxima = scores.detach().new_full((targets, scores.shape[1]), -torch.inf)
    maxima = maxima.scatter_reduce(0, positions, scores.detach(), "amax")
    counts = graph.counts_as(scores.dtype)
    weights = (scores - take_rows(maxima, rows)).exp()
    weights = weights if counts is None else weights * counts.unsqueeze(1)
    return weights / take_rows(sum_rows(rows, weights, targets), rows)


def sum_heads(graph: Graph, weights: Tensor, x: Tensor) -> Tensor:
    """Compute ``out[i,h,:] = sum_j weights[e,h] * x[j,h,:]``, with e the entry (i, j)."""
    coalesced, entry_numbers = graph.coalesced
    if entry_numbers is not None:
        weights = sum_rows(entry_numbers, weights, coalesced.size)
    matrix = sparse_of(coalesced.pattern_with_features(x.shape[1]), weights.flatten())
    with without_autocast(x.device):
        result = evaluate("O[i,h,k] = P[i,j,h] * X[j,h,k]", P=matrix, X=x, format="dense")
    assert isinstance(result, torch.Tensor)
    return result


def is_usual_nodes(x: Any, features: int) -> bool:
    """Whether ``x`` is a plain dense matrix of that many features, as in nearly all calls."""
    is_plain = type(x) in _PLAIN and x.layout is torch.strided and x.dim() == 2
    return is_plain and x.shape[1] == features and is_served(x.device)


def as_nodes(name: str, x: Any, features: int) -> Tensor:
    """Return ``x``, a matrix of that many features for each node, or with -1 of any number.

    Torch's sparse layouts become ours.
    """
    if is_usual_nodes(x, features):
        return x  # type: ignore[no-any-return]
    if not isinstance(x, torch.Tensor):
        raise OperandError(
            f"{name} must be a tensor of node features, but got {kind_of(x)}; {advice_on(x, 'x')}"
        )
    shape = x.shape
    if len(shape) != 2 or (features != -1 and shape[1] != features):
        wanted = "features" if features == -1 else features
        is_edge_index = not x.dtype.is_floating_point and shape[:1] == (2,)
        is_graph = len(shape) == 2 and (
            is_edge_index or (isinstance(x, SparseTensor) and shape[0] == shape[1])
        )
        hint = "; pass the features first, then the graph" if is_graph else ""
        raise ShapeError(f"{name} must have shape (nodes, {wanted}), but got {tuple(shape)}{hint}")
    if not isinstance(x, SparseTensor):
        check_device(name, x.device)
    return as_differentiable(name, x)
