"""What nodes take from their neighbours, with gradients: sums with weights, means, maxima, attention.

Each is one kernel over the rows of the graph; the way back is one over its columns, kept as rows of the
transposed graph, so that both read rows of features in parallel and write each result once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.compiler import is_compiling

from scorch._src.backends.base import is_served, routines_for, served_in_words
from scorch._src.backends.routines import Options, Scores
from scorch._src.devices import HOST
from scorch._src.grad_state import is_transformed
from scorch._src.ops.graph.edge_weights import Weighted
from scorch._src.ops.graph.graph import Graph, graph_of, is_learned
from scorch._src.ops.products import matmul
from scorch._src.statements.autograd import UNREAD
from scorch._src.statements.evaluate import evaluate
from scorch._src.storage.storage import Storage
from scorch._src.tensor.autograd import apply, sparse_of, values_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import OperandError, ShapeError

Tensor = torch.Tensor


def computed(tensor: Tensor) -> Tensor:
    """A dense tensor in the precision that kernels compute in."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.to(torch.float32)


# sums ------------------------------------------------------------------------------------------------


def total(weighted: Weighted, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """``out[i,:] = w[i,j] * x[j,:] + bias``."""
    if is_transformed():
        values = weighted.learned
        matrix = weighted.matrix if values is None else sparse_of(weighted.graph.pattern, values)
        product: Any = matmul.mm(matrix, x)
        return product if bias is None else product + bias  # type: ignore[no-any-return]
    found: Tensor = apply(_Total, x, weighted.learned, bias, weighted)
    return found


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, values: Tensor | None, bias: Tensor | None, weighted: Weighted
    ) -> Tensor:
        ctx.weighted = weighted
        if values is not None:
            ctx.save_for_backward(x, values)
        if UNREAD.get():
            return x.new_zeros(()).expand(weighted.graph.shape[0], x.shape[1])
        found: Any = matmul.mm(weighted.matrix, x.detach())
        return found if bias is None else found.add_(bias)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        weighted: Weighted = ctx.weighted
        saved: Any = ctx.saved_tensors or (None, None)
        x, values = saved
        of_x = of_values = of_bias = None
        if ctx.needs_input_grad[0]:
            is_fixed = values is None or not torch.is_grad_enabled()
            of_x = matmul.mm(weighted.turned if is_fixed else weighted.turned_by(values), grad)
        if ctx.needs_input_grad[1]:
            of_values = _sampled(weighted.graph, grad, x)
        if ctx.needs_input_grad[2]:
            of_bias = grad.sum(0)
        return of_x, of_values, of_bias, None


def _sampled(graph: Graph, rows: Tensor, columns: Tensor) -> Tensor:
    """The inner products of ``rows`` and ``columns`` for each entry."""
    ones = SparseTensor(Storage(graph.pattern, torch.ones(graph.size, dtype=rows.dtype, device=rows.device)))
    found = evaluate("S[i,j] = M[i,j] * A[i,k] * B[j,k]", M=ones, A=rows, B=columns, format="csr")
    assert isinstance(found, SparseTensor)
    return values_of(found)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``, where ``x`` may be sparse."""
    if not isinstance(x, SparseTensor) or is_compiling() or is_learned(x):
        return torch.nn.functional.linear(x, weight, bias)
    if x.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ShapeError(f"x has shape {tuple(x.shape)}, but the weight takes {weight.shape[1]} features")
    graph, values = graph_of(x, (x.shape[0], x.shape[1]))
    assert values is not None
    dtype = weight.dtype
    weighted = graph.keep(values, dtype, lambda: Weighted(graph, values.to(dtype)))
    return total(weighted, weight.t(), bias)


# maxima ----------------------------------------------------------------------------------------------


def maximum(graph: Graph, x: Tensor) -> Tensor:
    """The largest of the rows of ``x`` that each target takes from; zeros where there are none."""
    if is_transformed():
        return _largest(graph, x)
    keep = torch.is_grad_enabled() and x.requires_grad
    found: Tensor = apply(_Maximum, x.contiguous(), graph, keep)
    return found


class _Maximum(torch.autograd.Function):
    """Of several neighbours that reach the maximum, each gets an equal part of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, graph: Graph, keep: bool) -> Tensor:
        rows = graph.rows(x.dtype)
        found, ties = routines_for(x).neighbour_max((rows.pos, rows.crd, rows.counts), x, keep)
        ctx.graph = graph
        if ties is not None:
            ctx.save_for_backward(x, found, ties)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        x, found, ties = (tensor.detach() for tensor in ctx.saved_tensors)
        return _reached(ctx.graph, found, x, grad / ties, True), None, None


def _reached(graph: Graph, largest: Tensor, x: Tensor, flow: Tensor, is_back: bool) -> Tensor:
    """Sums of rows of ``flow`` along edges by which a source reaches the maximum of a target.

    They go from targets to sources on the way back, else from sources to targets.
    """
    found: Tensor = apply(_Reached, flow.contiguous(), graph, largest, x, is_back)
    return found


class _Reached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flow: Tensor, graph: Graph, largest: Tensor, x: Tensor, is_back: bool) -> Tensor:
        ctx.given = graph, largest, x, is_back
        rows = graph.columns(x.dtype) if is_back else graph.rows(x.dtype)
        ends = (x, largest) if is_back else (largest, x)
        return routines_for(rows.pos).neighbour_max_backward((rows.pos, rows.crd, rows.counts), *ends, flow)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        graph, largest, x, is_back = ctx.given
        return _reached(graph, largest, x, grad, not is_back), None, None, None, None


def _largest(graph: Graph, x: Tensor) -> Tensor:
    """``maximum`` in functions of torch."""
    rows, columns = graph.each
    found = x.new_zeros(graph.shape[0], x.shape[1])
    places = rows.unsqueeze(1).expand(-1, x.shape[1])
    return found.scatter_reduce(0, places, x.index_select(0, columns), "amax", include_self=False)


# attention -------------------------------------------------------------------------------------------


def attend(
    graph: Graph,
    x: Tensor,
    sources: Tensor,
    targets: Tensor,
    slope: float,
    dropout: float = 0.0,
    edges: Tensor | None = None,
) -> Tensor:
    """Sums of the rows of ``x`` (sources, heads, features), weighted by a softmax over each target's sources.

    Scores are ``leaky_relu(sources[j,h] + targets[i,h] + edges[e,h], slope)``, with e the entry (i, j);
    ``dropout`` drops weights after softmax.
    """
    if x.dim() != 3 or sources.shape != x.shape[:2] or targets.shape != (graph.shape[0], x.shape[1]):
        raise ShapeError(
            f"attention takes x (sources, heads, features) and scores (nodes, heads), not {tuple(x.shape)}, "
            f"{tuple(sources.shape)} and {tuple(targets.shape)}"
        )
    if is_transformed():
        return _attended(graph, x, sources, targets, edges, slope, dropout)
    seed = int(torch.randint(-(2**63), 2**63 - 1, (), device=HOST)) if dropout else 0
    given = [x.contiguous(), sources.contiguous(), targets.contiguous(), edges]
    keep = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in given)
    found: Tensor = apply(_Attend, *given, graph, Options(slope, dropout, seed), keep)
    return found


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        sources: Tensor,
        targets: Tensor,
        edges: Tensor | None,
        graph: Graph,
        options: Any,
        keep: bool,
    ) -> Tensor:
        scores = Scores(sources, targets, edges)
        found, kept = routines_for(x).graph_attention(graph.rows(x.dtype), x, scores, options, keep)
        ctx.graph, ctx.options = graph, options
        if kept is not None:
            ctx.save_for_backward(x, sources, targets, edges, kept)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        *given, kept = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_attend_again(ctx, given, kept, grad), None, None, None
        x, graph, grad = given[0], ctx.graph, grad.contiguous()
        scores = Scores(*given[1:])
        routines, options = routines_for(x), ctx.options
        rows, columns = graph.rows(x.dtype), graph.columns(x.dtype)
        each, of_targets = routines.graph_attention_scores_backward(rows, x, scores, options, kept, grad)
        of_x, of_sources = routines.graph_attention_features_backward(columns, options, kept, each, grad)
        return of_x, of_sources, of_targets, None if scores.edges is None else each, None, None, None


def _attend_again(ctx: Any, given: Any, kept: Tensor, grad: Tensor) -> list[Tensor | None]:
    """The gradients, from functions that have gradients again; what was dropped is dropped."""
    options = ctx.options
    is_kept = ~kept.signbit() if options.dropout else None
    x, sources, targets, edges = given
    found = _attended(ctx.graph, x, sources, targets, edges, options.slope, options.dropout, is_kept)
    needed = ctx.needs_input_grad[: len(given)]
    wanted = [tensor for tensor, is_needed in zip(given, needed, strict=True) if is_needed]
    made = iter(torch.autograd.grad(found, wanted, grad, create_graph=True))
    return [next(made) if is_needed else None for is_needed in needed]


def _attended(
    graph: Graph,
    x: Tensor,
    sources: Tensor,
    targets: Tensor,
    edges: Tensor | None,
    slope: float,
    dropout: float,
    is_kept: Tensor | None = None,
) -> Tensor:
    """``attend`` in functions that have all derivatives; numbers are made for each entry and head."""
    rows = graph.targets
    scores = sources.index_select(0, graph.sources) + targets.index_select(0, rows)
    scores = F.leaky_relu(scores if edges is None else scores + edges, slope)
    places = rows.unsqueeze(1).expand(-1, scores.shape[1])
    most = targets.detach().new_full(targets.shape, -torch.inf)
    most = most.scatter_reduce(0, places, scores.detach(), "amax")
    counts = graph.counts_as(x.dtype)
    weights = (scores - most.index_select(0, rows)).exp()
    weights = weights if counts is None else weights * counts.unsqueeze(1)
    sums = torch.zeros_like(targets).index_add(0, rows, weights)
    weights = weights / sums.index_select(0, rows)
    if is_kept is not None:
        weights = weights * is_kept * (1 / (1 - dropout) if dropout < 1 else 0.0)
    elif dropout:
        weights = F.dropout(weights, dropout)
    whole, parts = graph.merged
    if parts is not None:
        weights = torch.zeros_like(weights[: whole.size]).index_add(0, parts, weights)
    matrix = sparse_of(whole.rows_of(x.shape[1]), weights.flatten())
    found = evaluate("O[i,h,k] = P[i,j,h] * X[j,h,k]", P=matrix, X=x, format="dense")
    assert isinstance(found, torch.Tensor)
    return found


def check_nodes(name: str, x: Any, features: int) -> None:
    """Refuse what is no matrix of that many features for each node."""
    if not isinstance(x, torch.Tensor):
        raise OperandError(f"{name} is a tensor of features for each node, not a {type(x).__name__}")
    if x.dim() != 2 or x.shape[1] != features:
        raise ShapeError(f"{name} has shape {tuple(x.shape)}; this layer takes (nodes, {features})")
    if not isinstance(x, SparseTensor) and (x.layout is not torch.strided or not is_served(x.device)):
        raise OperandError(
            f"{name} must be on the {served_in_words().upper()}, dense or a scorch.SparseTensor; "
            f"it is {x.layout} on {x.device}"
        )
