"""Dynamic sparse training: drop weights and grow others while a network trains (SET, RigL).

Every ``update_every`` steps, drop the weights of smallest magnitude in each sparse layer and grow as many at
other positions with value zero: at random (SET, Mocanu et al. 2018), or where the gradient is largest (RigL,
Evci et al. 2020). The fraction that is replaced decays to zero along a cosine. Weights, gradients and
optimizer states always have one element per stored weight; gradients outside the sparsity pattern are
computed in tiles, on the steps that need them (``scorch.grad_topk``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from scorch._src.name_hints import suggests_keywords
from scorch._src.nn.grad_topk import grad_topk
from scorch._src.nn.pattern import pattern_from_keys, stored_keys
from scorch._src.nn.sparse_linear import SparseLinear
from scorch._src.storage.coordinates import keys_of
from scorch.errors import (
    ArgumentError,
    CallError,
    OperandError,
    UnsupportedError,
    is_integer,
    kind_of,
    warn_deprecated,
)


class DynamicSparsity:
    """Base class of ``SET`` and ``RigL``; call ``step()`` after each ``optimizer.step()``."""

    needs_gradients = False

    @suggests_keywords
    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        update_every: int = 100,
        stop_step: int | None = None,
        fraction: float = 0.3,
        every: int | None = None,
        until: int | None = None,
    ) -> None:
        name = type(self).__name__
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise OperandError(
                f"{name} expected a model and its optimizer, but got {kind_of(optimizer)} as optimizer; call "
                f"it as {name}(model, optimizer, update_every=100, stop_step=1000)"
            )
        if every is not None:
            warn_deprecated(f"{type(self).__name__}(every=)", f"{type(self).__name__}(update_every=)")
            update_every = every
        if until is not None:
            warn_deprecated(f"{type(self).__name__}(until=)", f"{type(self).__name__}(stop_step=)")
            stop_step = until
        if stop_step is None:
            raise ArgumentError(
                "stop_step is required: the training step after which the sparsity pattern stays fixed, such "
                "as three quarters of all steps"
            )
        for name, steps in (("update_every", update_every), ("stop_step", stop_step)):
            if not is_integer(steps, 1):
                raise ArgumentError(f"{name} must be a positive number of training steps, but got {steps!r}")
        if not 0 < fraction <= 1:
            raise ArgumentError(f"fraction must be in (0, 1], but got {fraction!r}")
        self.layers = {
            name: module for name, module in model.named_modules() if isinstance(module, SparseLinear)
        }
        if not self.layers:
            raise ArgumentError(
                "the model has no sparse layers; create some with scorch.sparsify(model, sparsity, "
                "method='random', distribution='erk', prefer='size')"
            )
        self._check_layers(optimizer)
        self.optimizer = optimizer
        self.update_every, self.stop_step, self.fraction = update_every, stop_step, fraction
        self.steps = 0
        self._watchers: dict[str, grad_topk] = {}
        self._watch_next_step()

    def _check_layers(self, optimizer: torch.optim.Optimizer) -> None:
        optimized = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        seen: set[int] = set()
        for name, layer in self.layers.items():
            if layer.format.is_blocked:
                raise UnsupportedError(
                    f"{name} is stored in blocks; dynamic sparsity needs a format without blocks, such as csr"
                )
            if id(layer.values) not in optimized:
                raise ArgumentError(f"the optimizer does not contain the weights of {name}")
            if id(layer.values) in seen:
                raise UnsupportedError(f"{name} shares its weights with another layer")
            seen.add(id(layer.values))

    @property
    def every(self) -> int:
        warn_deprecated(f"{type(self).__name__}.every", "update_every")
        return self.update_every

    @property
    def until(self) -> int:
        warn_deprecated(f"{type(self).__name__}.until", "stop_step")
        return self.stop_step

    def share(self, step: int) -> float:
        """Return the fraction of weights that is replaced at a step."""
        return self.fraction / 2 * (1 + math.cos(math.pi * min(step / self.stop_step, 1.0)))

    def count(self, layer: SparseLinear, step: int) -> int:
        """Return how many weights of a layer are replaced at a step: at most as many as are free."""
        free = layer.out_features * layer.in_features - layer.nnz
        return min(round(self.share(step) * layer.nnz), free)

    def is_update(self, step: int) -> bool:
        """Return whether weights are replaced at a step."""
        return step % self.update_every == 0 and 0 < step < self.stop_step

    def step(self) -> bool:
        """Count a training step, and replace weights every ``update_every`` steps.

        Returns:
            Whether weights were replaced.
        """
        self.steps += 1
        is_update = self.is_update(self.steps)
        if is_update:
            new_keys = self._choose_new_keys()
            for name, layer in self.layers.items():
                self._exchange(layer, new_keys[name])
        self._watch_next_step()
        return is_update

    def _watch_next_step(self) -> None:
        """Watch the next backward passes, if weights are replaced after them."""
        if self.needs_gradients and self.is_update(self.steps + 1):
            for name, layer in self.layers.items():
                with torch.enable_grad():
                    watch = grad_topk(layer.weight, self.count(layer, self.steps + 1))
                self._watchers[name] = watch.__enter__()

    def _choose_new_keys(self) -> dict[str, torch.Tensor]:
        """Choose the keys of new entries for each layer."""
        return {
            name: draw_free_keys(layer, self.count(layer, self.steps)) for name, layer in self.layers.items()
        }

    def _exchange(self, layer: SparseLinear, new_keys: torch.Tensor) -> None:
        """Replace the smallest weights of a layer by entries at ``new_keys``, which start at zero."""
        count = new_keys.numel()
        if not count:
            return
        largest = torch.sort(layer.values.detach().abs(), stable=True).indices[count:]
        merged_keys = torch.cat([stored_keys(layer.pattern)[largest], new_keys]).sort().values
        pattern = pattern_from_keys(merged_keys, layer.pattern.shape, layer.format)
        layer.rewire(pattern, new=0.0, optimizer=self.optimizer)

    # Python ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop watching backward passes, if training ends before ``stop_step``."""
        watchers, self._watchers = self._watchers, {}
        for watch in watchers.values():
            watch.__exit__(CallError, None, None)

    def state_dict(self) -> dict[str, Any]:
        """Return the state needed to resume: the number of steps."""
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a ``state_dict``."""
        self.close()
        self.steps = int(state["steps"])
        self._watch_next_step()


class SET(DynamicSparsity):
    """Sparse evolutionary training (Mocanu et al. 2018): drop small weights, grow new ones at random.

    Every ``update_every`` steps, drops the weights of smallest magnitude in each sparse layer and grows as
    many at random positions outside the sparsity pattern, with value zero.

    Args:
        model: a model with ``SparseLinear`` layers, in a format without blocks.
        optimizer: the optimizer of the model; the states of dropped weights are dropped, too.
        update_every: the number of training steps between two updates.
        stop_step: the training step after which the sparsity pattern stays fixed.
        fraction: the initial fraction of weights to replace; it decays to zero along a cosine.
        every: the old name of ``update_every``.
        until: the old name of ``stop_step``.

    Raises:
        ArgumentError: the model has no sparse layers, or the optimizer lacks their weights.
        UnsupportedError: a layer stores blocks, or shares its weights with another one.

    Example:

        >>> import torch, scorch
        >>> model = scorch.nn.SparseLinear(16, 4, density=0.5)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> scheduler = scorch.nn.SET(model, optimizer, update_every=2, stop_step=100)
        >>> for _ in range(2):
        ...     model(torch.ones(1, 16)).sum().backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     print(scheduler.step(), model.nnz)
        False 32
        True 32
    """


class RigL(DynamicSparsity):
    """The rigged lottery (Evci et al. 2020): drop small weights, grow new ones where gradients are large.

    Every ``update_every`` steps, drops the weights of smallest magnitude in each sparse layer and grows as
    many where the gradient outside the sparsity pattern is largest, with value zero. A dropped weight does
    not grow again in the same step. The gradients of several backward passes before a step are summed, so
    gradient accumulation works.

    Args:
        model: a model with ``SparseLinear`` layers, in a format without blocks.
        optimizer: the optimizer of the model; the states of dropped weights are dropped, too.
        update_every: the number of training steps between two updates.
        stop_step: the training step after which the sparsity pattern stays fixed.
        fraction: the initial fraction of weights to replace; it decays to zero along a cosine.
        every: the old name of ``update_every``.
        until: the old name of ``stop_step``.

    Raises:
        ArgumentError: the model has no sparse layers, or the optimizer lacks their weights.
        UnsupportedError: a layer stores blocks, or shares its weights with another one.
        CallError: ``step()`` was called without a backward pass.

    Example:

        >>> import torch, scorch
        >>> model = scorch.nn.SparseLinear(16, 4, density=0.5)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> scheduler = scorch.nn.RigL(model, optimizer, update_every=1, stop_step=100)
        >>> model(torch.ones(1, 16)).sum().backward()
        >>> optimizer.step()
        >>> scheduler.step(), model.nnz
        (True, 32)
    """

    needs_gradients = True

    def _choose_new_keys(self) -> dict[str, torch.Tensor]:
        watchers, self._watchers = self._watchers, {}
        new_keys = {}
        for name, layer in self.layers.items():
            watch = watchers.pop(name, None)
            if watch is None:
                raise CallError(f"no gradients of {name} were recorded; call step() once per optimizer step")
            watch.__exit__(None, None, None)
            new_keys[name] = keys_of(list(watch.indices), layer.pattern.shape)
        return new_keys


def draw_free_keys(layer: SparseLinear, count: int) -> torch.Tensor:
    """Draw ``count`` different keys that the layer does not store, without a dense mask."""
    stored = stored_keys(layer.pattern).sort().values
    elements = layer.out_features * layer.in_features
    keys = torch.zeros(0, dtype=torch.int64, device=stored.device)
    while keys.numel() < count:
        candidates = torch.randint(elements, (2 * (count - keys.numel()) + 16,), device=stored.device)
        position = torch.searchsorted(stored, candidates).clamp_(max=max(stored.numel() - 1, 0))
        free = candidates[stored[position] != candidates] if stored.numel() else candidates
        keys = torch.unique(torch.cat([keys, free]))
    return keys[torch.randperm(keys.numel(), device=stored.device)[:count]]
