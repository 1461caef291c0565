"""What sparse tensors call of modules that stand on them: each puts its own in when it is imported.

So imports point down, as all imports do, where calls point up. ``scorch._src.register`` imports them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Hooks:
    """The calls that point up; see the functions that are put in for what they do."""

    differentiate: Callable[..., Any]  # tensor.autograd: a function of tensors that require gradients
    values_at: Callable[..., Any]  # tensor.autograd: the values of a tensor at the places of a pattern
    values_of: Callable[..., Any]  # tensor.autograd: the values of a tensor, connected to it
    sparse_of: Callable[..., Any]  # tensor.autograd: a pattern with values, connected to them
    store: Callable[..., Any]  # tensor.autograd: the nonzeros of a dense tensor, connected to it
    convert: Callable[..., Any]  # tensor.autograd: a tensor that requires a gradient in another format
    write: Callable[..., Any]  # tensor.in_place: a function that writes to its first argument
    carry_forward: Callable[..., Any]  # tensor.transforms.forward_mode: a function of tensors with tangents
    run_as_a_whole: Callable[..., Any]  # tensor.transforms.functorch: a function as one step of torch.func
    is_tracked: Callable[..., bool]  # tensor.transforms.functorch: whether it tracks values of sparse tensors
    is_any_tracked: Callable[..., bool]  # tensor.transforms.functorch: or anything else
    trace: Callable[..., Any]  # tensor.traced: a tensor inside of a graph that is being made
    check_write: Callable[..., None]  # tensor.write_checks: refuses to write where torch does
    see_again: Callable[..., Any]  # tensor.views: the storage of a view after its base has changed
    record: Callable[..., Any]  # compile.capture.trace: makes a call a part of the graph that is being made
    run_operator: Callable[..., Any]  # ops.fallback: an operator of ATen that has no entry
    retry: Callable[..., Any]  # tensor.call_errors: arguments with which a call that failed may work
    retell: Callable[..., Exception]  # tensor.call_errors: an error in words of sparse tensors


hooks = Hooks()
