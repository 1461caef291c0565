"""``torch.autograd.grad`` and ``backward`` of sparse tensors, and with respect to them.

torch hands these calls over like those of other functions, but they run hooks, formulas of users, and what a
checkpoint computes again. There, calls with sparse tensors must reach Scorch as they do in
``loss.backward()``. So torch's engine is started from here: torch's own functions would hand the call over
again, unless it was switched off that they do so, for all calls in the hooks as well.

The weight of a layer is computed from the values of the layer each time it is read. Its gradient is from all
uses of these values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from scorch._src.tensor.autograd import sparse_of
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import engine_run_backward, make_grads

Seeds = torch.Tensor | Sequence[torch.Tensor | None] | None  # gradients of the outputs


@implements(torch.autograd.grad, differentiable=True)
def grad(
    outputs: Sequence[Any],
    inputs: Sequence[Any],
    grad_outputs: Seeds = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    """Return gradients; torch has listed the outputs and inputs, and checked the options."""
    leaves = _with_sources(inputs)
    if is_grads_batched:  # torch.vmap of the engine
        options = {"retain_graph": retain_graph, "create_graph": create_graph, "allow_unused": allow_unused}
        arguments = (outputs, leaves, grad_outputs)
        computed = hooks.run_by_torch(torch.autograd.grad, arguments, {**options, "is_grads_batched": True})
    else:
        seeds = _seeds(outputs, grad_outputs)
        options = {"allow_unreachable": allow_unused, "accumulate_grad": False}
        is_kept = create_graph if retain_graph is None else retain_graph
        computed = engine_run_backward(outputs, seeds, is_kept, create_graph, leaves, **options)
    gradients = list(computed)
    for position, (each, leaf) in enumerate(zip(inputs, leaves, strict=True)):
        if gradients[position] is None and materialize_grads:
            gradients[position] = torch.zeros_like(each, requires_grad=create_graph)
        elif gradients[position] is not None and each is not leaf:
            gradients[position] = sparse_of(each.storage.pattern, gradients[position])
    return tuple(gradients)


@implements(torch.autograd.backward, differentiable=True)
def backward(
    tensors: Any,
    grad_tensors: Seeds = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: None = None,
    inputs: Any = None,
) -> None:
    """Add gradients to those of the leaves, or of ``inputs``, which some versions of torch have listed."""
    tensors = _listed(tensors)
    seeds, leaves = _seeds(tensors, grad_tensors), _with_sources(_listed(inputs))
    options = {"allow_unreachable": True, "accumulate_grad": True}
    is_kept = create_graph if retain_graph is None else retain_graph
    engine_run_backward(tensors, seeds, is_kept, create_graph, leaves, **options)


@implements(torch.Tensor.backward, differentiable=True)
def backward_of_tensor(
    self: torch.Tensor,
    gradient: torch.Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Call the function, which lists the inputs."""
    torch.autograd.backward(self, gradient, retain_graph, create_graph, inputs=inputs)


def _listed(tensors: Any) -> tuple[Any, ...]:
    """Return all of one or several tensors or edges of a graph."""
    if tensors is None:
        return ()
    if isinstance(tensors, (torch.Tensor, GradientEdge)):
        return (tensors,)
    return tuple(tensors.values() if isinstance(tensors, dict) else tensors)


def _seeds(outputs: Sequence[Any], gradients: Seeds) -> tuple[torch.Tensor | None, ...]:
    if gradients is None or isinstance(gradients, torch.Tensor):
        gradients = (gradients,) * (len(outputs) if gradients is None else 1)
    return make_grads(outputs, tuple(gradients), is_grads_batched=False)


def _with_sources(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Replace weights of layers by the values that they were computed from."""
    return tuple(each.source_values if _is_computed_weight(each) else each for each in inputs)


def _is_computed_weight(value: Any) -> bool:
    is_weight = isinstance(value, SparseTensor) and value.weight_of is not None
    return is_weight and value.source_values is not None
