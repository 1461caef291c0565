"""Dynamic sparse training: weights are dropped and others grown while a network learns (SET, RigL).

Every ``every`` steps the smallest weights of each sparse layer are dropped, and as many grown elsewhere with
the value zero: at random (SET, Mocanu et al. 2018), or where the gradient is largest (RigL, Evci et al.
2020). The share that is exchanged falls along a cosine to zero. Weights, gradients and what optimizers keep
have one element for each stored weight at all times; gradients elsewhere are looked at in tiles, on the
steps that need them (``scorch.grad_topk``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from scorch._src.nn.grad_topk import grad_topk
from scorch._src.nn.linear import SparseLinear
from scorch._src.nn.pattern import pattern_at
from scorch._src.storage.coordinates import coordinates, keys_of
from scorch.errors import ArgumentError, CallError, UnsupportedError


class DynamicSparsity:
    """What SET and RigL have in common; call ``step()`` after each ``optimizer.step()``."""

    needs_gradients = False

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        every: int = 100,
        until: int,
        fraction: float = 0.3,
    ) -> None:
        for name, given in (("every", every), ("until", until)):
            if isinstance(given, bool) or not isinstance(given, int) or given < 1:
                raise ArgumentError(f"{name} is a number of steps, not {given!r}")
        if not 0 < fraction <= 1:
            raise ArgumentError(f"fraction is the share of weights that is exchanged, not {fraction!r}")
        self.layers = {
            name: module for name, module in model.named_modules() if isinstance(module, SparseLinear)
        }
        if not self.layers:
            raise ArgumentError(
                "the model has no sparse layers; make some with scorch.sparsify(model, sparsity, "
                "method='random', distribution='erk', prefer='size')"
            )
        self._check_layers(optimizer)
        self.optimizer = optimizer
        self.every, self.until, self.fraction = every, until, fraction
        self.steps = 0
        self._watched: dict[str, grad_topk] = {}
        self._watch_next()

    def _check_layers(self, optimizer: torch.optim.Optimizer) -> None:
        known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        seen: set[int] = set()
        for name, layer in self.layers.items():
            if layer.format.is_blocked:
                raise UnsupportedError(f"{name} has blocks; only single weights are exchanged: use csr")
            if id(layer.values) not in known:
                raise ArgumentError(f"the optimizer does not have the weights of {name}")
            if id(layer.values) in seen:
                raise UnsupportedError(f"{name} shares its weights with another layer")
            seen.add(id(layer.values))

    def share(self, step: int) -> float:
        """The share of weights that is exchanged at a step."""
        return self.fraction / 2 * (1 + math.cos(math.pi * min(step / self.until, 1.0)))

    def count(self, layer: SparseLinear, step: int) -> int:
        """How many weights of a layer are exchanged at a step: at most as many as are free."""
        free = layer.out_features * layer.in_features - layer.nnz
        return min(round(self.share(step) * layer.nnz), free)

    def is_update(self, step: int) -> bool:
        """Whether weights are exchanged at a step."""
        return step % self.every == 0 and 0 < step < self.until

    def step(self) -> bool:
        """Count a step of training, and exchange weights if it is time; returns whether it was."""
        self.steps += 1
        changes = self.is_update(self.steps)
        if changes:
            grown = self._grown()
            for name, layer in self.layers.items():
                self._exchange(layer, grown[name])
        self._watch_next()
        return changes

    def _watch_next(self) -> None:
        """Listen to the next backward passes, if weights are exchanged after them."""
        if self.needs_gradients and self.is_update(self.steps + 1):
            for name, layer in self.layers.items():
                with torch.enable_grad():
                    watch = grad_topk(layer.weight, self.count(layer, self.steps + 1))
                self._watched[name] = watch.__enter__()

    def _grown(self) -> dict[str, torch.Tensor]:
        """For each layer the keys of places that are new."""
        return {
            name: random_places(layer, self.count(layer, self.steps)) for name, layer in self.layers.items()
        }

    def _exchange(self, layer: SparseLinear, grown: torch.Tensor) -> None:
        """Drop the smallest weights of a layer for those at the keys ``grown``, which begin at zero."""
        count = grown.numel()
        if not count:
            return
        keys = stored_keys(layer)
        size = layer.values.detach().abs()
        kept = torch.sort(size, stable=True).indices[count:]
        shape = (layer.out_features, layer.in_features)
        found = torch.cat([keys[kept], grown]).sort().values
        layer.rewire(pattern_at(found, shape, layer.format), new=0.0, optimizer=self.optimizer)

    # Python ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop listening to backward passes, if training ends before ``until``."""
        watched, self._watched = self._watched, {}
        for watch in watched.values():
            watch.__exit__(CallError, None, None)

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on later: the number of steps."""
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.close()
        self.steps = int(state["steps"])
        self._watch_next()


class SET(DynamicSparsity):
    """Sparse evolutionary training: new weights are grown at random places.

    ::

        exchange = scorch.nn.SET(model, optimizer, every=100, until=7500)
        for x, y in batches:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
            exchange.step()
    """


class RigL(DynamicSparsity):
    """Rigged lottery: new weights are grown where the gradient is largest; used as ``SET`` is.

    A dropped weight is not grown again in the same step. Gradients of several backward passes since the last
    step are summed, so they may be accumulated.
    """

    needs_gradients = True

    def _grown(self) -> dict[str, torch.Tensor]:
        watched, self._watched = self._watched, {}
        found = {}
        for name, layer in self.layers.items():
            watch = watched.pop(name, None)
            if watch is None:
                raise CallError(f"there were no gradients of {name}; call step() once for each step")
            watch.__exit__(None, None, None)
            found[name] = keys_of(list(watch.indices), (layer.out_features, layer.in_features))
        return found


def stored_keys(layer: SparseLinear) -> torch.Tensor:
    """The place of every stored weight, counted row by row, in stored order."""
    found = coordinates(layer.pattern)
    return keys_of([found[0], found[1]], layer.pattern.shape)


def random_places(layer: SparseLinear, count: int) -> torch.Tensor:
    """``count`` different places that the layer does not store, drawn at random, without a dense mask."""
    stored = stored_keys(layer).sort().values
    room = layer.out_features * layer.in_features
    found = torch.zeros(0, dtype=torch.int64, device=stored.device)
    while found.numel() < count:
        drawn = torch.randint(room, (2 * (count - found.numel()) + 16,), device=stored.device)
        place = torch.searchsorted(stored, drawn).clamp_(max=max(stored.numel() - 1, 0))
        free = drawn[stored[place] != drawn] if stored.numel() else drawn
        found = torch.unique(torch.cat([found, free]))
    return found[torch.randperm(found.numel(), device=stored.device)[:count]]
