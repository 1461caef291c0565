"""Gradients of a group of recorded calls that have gradients themselves.

Results of sums and softmaxes that are known are connected to what they were computed from, all other calls
are run again, and torch goes back through both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from scorch._src.compile.group_arrays import run_outside, viewed
from scorch._src.compile.lazy_tensor import Recipe
from scorch._src.compiler.pipeline import as_statement
from scorch._src.engine.fused_executable import PATTERN
from scorch._src.notation.indexing import Statement
from scorch._src.notation.nodes import Access, Op
from scorch._src.ops.reduction.softmax import connected_softmax
from scorch._src.statements.autograd import differentiable
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import sparse_of, values_at, values_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import EnableTorchFunction

if TYPE_CHECKING:
    from scorch._src.compile.group import GroupPlan


class Again:
    """One run of a group, to be differentiated; ``known`` are results by their names in steps."""

    def __init__(
        self,
        plan: GroupPlan,
        pattern: Pattern,
        patterns: Sequence[Pattern | None],
        known: Mapping[str, torch.Tensor],
    ) -> None:
        self.plan = plan
        self.pattern = pattern
        self.patterns = patterns
        self.known = known

    def gradients(
        self, arrays: Sequence[torch.Tensor], incoming: Sequence[torch.Tensor], needed: Sequence[bool]
    ) -> list[torch.Tensor | None]:
        """The gradients of ``arrays``, those of the sources, where they are ``needed``."""
        again = torch.is_grad_enabled()
        # whoever asked for gradients may have come through __torch_function__, which is turned off inside
        with torch.enable_grad(), EnableTorchFunction():
            given = []
            for array, need in zip(arrays, needed, strict=True):
                own = array if again and need else array.detach().requires_grad_(need)
                given.append(own.view_as(own) if again and need else own)  # to here torch goes, no further
            found = self._connected(given)
            pairs = [(out, g) for out, g in zip(found, incoming, strict=True) if out.requires_grad]
            wanted = [array for array, need in zip(given, needed, strict=True) if need]
            gradients = torch.autograd.grad(
                [out for out, _ in pairs],
                wanted,
                [g for _, g in pairs],
                create_graph=again,
                allow_unused=True,
            )
        left = iter(gradients)
        return [next(left) if need else None for need in needed]

    def _connected(self, arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results that were asked for, connected to ``arrays``."""
        plan = self.plan
        made: dict[int, torch.Tensor] = {}
        for number, pattern, array in zip(plan.sources, self.patterns, arrays, strict=True):
            made[number] = array if pattern is None else sparse_of(pattern, array)
        recipes = dict(zip(plan.order, plan.recipes, strict=True))
        for (number, recipe), call in zip(recipes.items(), plan.outside, strict=True):
            found = self.known.get(recipe.access.tensor)
            if found is None or recipe.kind == "elementwise":
                made[number] = run_outside(call, made)
            else:
                made[number] = self._known(recipe, found, made)
        return [self._at(made[n]) if recipes[n].is_sparse else made[n] for n in plan.asked]

    def _known(self, recipe: Recipe, known: torch.Tensor, made: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """A result that need not be computed again, connected to what it was computed from."""
        pattern = self.pattern
        result = SparseTensor(Storage(pattern, known)) if recipe.is_sparse else known
        parents = {name: made[number] for name, number in recipe.parents.items()}
        if recipe.kind != "sum":
            (tensor,) = parents.values()
            assert isinstance(result, SparseTensor)
            return connected_softmax(self._at(tensor), result, 1, recipe.kind)
        (step,) = recipe.steps
        mask = Access(PATTERN, recipe.access.indices) if recipe.is_sparse else None
        if mask is not None and not any(access.indices == mask.indices for access in step.accesses):
            step = replace(step, body=Op("mul", (mask, step.body)))
            parents[PATTERN] = SparseTensor(Storage(pattern, torch.ones_like(known)))
        names = tuple(dict.fromkeys(access.tensor for access in step.accesses))
        operands = [
            parents[name]
            if isinstance(parents[name], SparseTensor)
            else viewed(parents[name], recipe.views.get(name))
            for name in names
        ]
        form: Any = pattern.format if recipe.is_sparse else "dense"
        return differentiable(Statement(as_statement(step)), names, operands, form, known=result)

    def _at(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a tensor at the entries of the pattern, connected to it."""
        if isinstance(tensor, SparseTensor) and tensor.storage.pattern is self.pattern:
            return values_of(tensor)
        return values_at(tensor, self.pattern)
