"""Double backward of a fused group: gradients that can be differentiated again.

Saved results of sums and softmaxes are connected to their operands, all other calls run again, and autograd
differentiates both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from scorch._src.compile.group_arrays import drop_broadcast_dims, run_eager_call
from scorch._src.compile.lazy_tensor import Recipe
from scorch._src.compiler.pipeline import as_statement
from scorch._src.engine.fused_executable import PATTERN
from scorch._src.notation.indexing import Statement
from scorch._src.notation.nodes import Access, Op
from scorch._src.ops.reduction.softmax import connect_softmax
from scorch._src.statements.autograd import differentiable
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import sparse_of, values_at, values_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import EnableTorchFunction

if TYPE_CHECKING:
    from scorch._src.compile.group_plan import GroupPlan


@dataclass(frozen=True)
class DoubleBackward:
    """One run of a group, to be differentiated; ``saved`` are results by their names in steps."""

    plan: GroupPlan
    pattern: Pattern
    patterns: Sequence[Pattern | None]
    saved: Mapping[str, torch.Tensor]

    def gradients(
        self, arrays: Sequence[torch.Tensor], incoming: Sequence[torch.Tensor], needed: Sequence[bool]
    ) -> list[torch.Tensor | None]:
        """Return the gradients of ``arrays``, those of the sources, where ``needed``."""
        create_graph = torch.is_grad_enabled()
        # the call may come from inside __torch_function__, where it is disabled
        with torch.enable_grad(), EnableTorchFunction():
            inputs = []
            for array, need in zip(arrays, needed, strict=True):
                leaf = array if create_graph and need else array.detach().requires_grad_(need)
                inputs.append(leaf.view_as(leaf) if create_graph and need else leaf)  # autograd stops here
            results = self._rerun(inputs)
            differentiable = [(out, g) for out, g in zip(results, incoming, strict=True) if out.requires_grad]
            differentiated = [array for array, need in zip(inputs, needed, strict=True) if need]
            gradients = torch.autograd.grad(
                [out for out, _ in differentiable],
                differentiated,
                [g for _, g in differentiable],
                create_graph=create_graph,
                allow_unused=True,
            )
        remaining = iter(gradients)
        return [next(remaining) if need else None for need in needed]

    def _rerun(self, arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the requested results, connected to ``arrays``."""
        plan = self.plan
        tensors: dict[int, torch.Tensor] = {}
        for number, pattern, array in zip(plan.sources, self.patterns, arrays, strict=True):
            tensors[number] = array if pattern is None else sparse_of(pattern, array)
        recipes = dict(zip(plan.order, plan.recipes, strict=True))
        for (number, recipe), call in zip(recipes.items(), plan.eager_calls, strict=True):
            saved = self.saved.get(recipe.access.tensor)
            if saved is None or recipe.kind == "elementwise":
                tensors[number] = run_eager_call(call, tensors)
            else:
                tensors[number] = self._connect_saved(recipe, saved, tensors)
        return [
            self._values_on_pattern(tensors[n]) if recipes[n].is_sparse else tensors[n]
            for n in plan.requested
        ]

    def _connect_saved(
        self, recipe: Recipe, array: torch.Tensor, tensors: Mapping[int, torch.Tensor]
    ) -> torch.Tensor:
        """Connect a saved result to the tensors it was computed from."""
        pattern = self.pattern
        result = SparseTensor(Storage(pattern, array)) if recipe.is_sparse else array
        parents = {name: tensors[number] for name, number in recipe.parents.items()}
        if recipe.kind != "sum":
            (tensor,) = parents.values()
            assert isinstance(result, SparseTensor)
            return connect_softmax(self._values_on_pattern(tensor), result, 1, recipe.kind)
        (step,) = recipe.steps
        mask = Access(PATTERN, recipe.access.indices) if recipe.is_sparse else None
        if mask is not None and not any(access.indices == mask.indices for access in step.accesses):
            step = replace(step, body=Op("mul", (mask, step.body)))
            parents[PATTERN] = SparseTensor(Storage(pattern, torch.ones_like(array)))
        names = tuple(dict.fromkeys(access.tensor for access in step.accesses))
        operands = [
            parents[name]
            if isinstance(parents[name], SparseTensor)
            else drop_broadcast_dims(parents[name], recipe.views.get(name))
            for name in names
        ]
        form: Any = pattern.format if recipe.is_sparse else "dense"
        return differentiable(Statement(as_statement(step)), names, operands, form, known=result)

    def _values_on_pattern(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the values of a tensor at the entries of the pattern, connected to it."""
        if isinstance(tensor, SparseTensor) and tensor.storage.pattern is self.pattern:
            return values_of(tensor)
        return values_at(tensor, self.pattern)
