"""Functions that sparse tensors call in modules above them: each module registers its own on import.

So imports point down, as all imports do, where calls point up. ``scorch._src.register`` imports them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Hooks:
    """The calls that point up; the registered functions document themselves."""

    differentiate: Callable[..., Any]  # tensor.autograd: a function of tensors that require gradients
    values_at: Callable[..., Any]  # tensor.autograd: the values of a tensor at the places of a pattern
    values_of: Callable[..., Any]  # tensor.autograd: the values of a tensor, connected to it
    sparse_of: Callable[..., Any]  # tensor.autograd: a pattern with values, connected to them
    store: Callable[..., Any]  # tensor.autograd: the nonzeros of a dense tensor, connected to it
    convert: Callable[..., Any]  # tensor.autograd: a tensor that requires a gradient in another format
    write: Callable[..., Any]  # tensor.in_place: a function that writes to its first argument
    push_forward: Callable[..., Any]  # tensor.transforms.forward_mode: a function of tensors with tangents
    run_as_one_function: Callable[..., Any]  # tensor.transforms.functorch: one autograd function
    wrap: Callable[..., Any]  # tensor.transforms.functorch: a tensor whose values it has wrapped
    is_tracked: Callable[..., bool]  # tensor.transforms.functorch: whether it tracks values of sparse tensors
    is_any_tracked: Callable[..., bool]  # tensor.transforms.functorch: or anything else
    trace: Callable[..., Any]  # tensor.traced: a tensor inside a graph that is traced
    gradient_of_weight: Callable[..., Any]  # tensor.layer_weight: ``layer.weight.grad``
    check_write: Callable[..., None]  # tensor.write_checks: refuse to write where torch does
    repeat_by_builtins: Callable[[], None]  # statements.call_cache: from now on, calls that nothing tracks
    map_values: Callable[..., Any]  # tensor.map_values: a function of the stored values
    as_view: Callable[..., Any]  # tensor.views.link: link the result of an operator as a view
    record: Callable[..., Any]  # compile.capture.trace: add a call to the graph that is traced
    run_by_torch: Callable[..., Any]  # tensor.operators: a function without an entry, of what nothing tracks
    run_operator: Callable[..., Any]  # ops.fallback: an operator of ATen that has no entry
    refuse_inside_dtensor: Callable[..., None]  # ops.fallback: one that makes a local tensor dense
    retry: Callable[..., Any]  # tensor.call_errors: arguments with which a call that failed may work
    refused_by_jit: Callable[..., Exception]  # tensor.call_errors: the error for what torch.jit meets
    translate_error: Callable[..., Exception]  # tensor.call_errors: translate an error of torch


hooks = Hooks()
