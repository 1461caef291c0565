"""Orders of the vertices of a graph on one rank, in which neighbors are close to each other."""

from __future__ import annotations

import torch

from scorch._src.distributed.partition.choose import LARGEST, scramble
from scorch._src.distributed.partition.level import Level

Tensor = torch.Tensor


def cuthill_mckee(level: Level, seed: int | None = None) -> Tensor:
    """Return the vertices in Cuthill and McKee's order: by distance from one, by their neighbors, by degree.

    The first vertex of each component is random with a seed. Without one, it is far from the others: the last
    of an order that began with the least degree.
    """
    components = _components(level)
    if seed is not None:
        return _order_from(level, components, scramble(level.ids, seed))
    degrees = torch.bincount(level.rows, minlength=level.count)
    order = _order_from(level, components, degrees * level.count + level.ids)
    preference = torch.empty_like(order)
    preference[order] = level.ids.flip(0)
    return _order_from(level, components, preference)


def _order_from(level: Level, components: Tensor, preference: Tensor) -> Tensor:
    """Return the order that begins, in each component, with the vertex whose preference is least."""
    degrees = torch.bincount(level.rows, minlength=level.count)
    frontier = _first_of_each(preference, components)
    distance = torch.full_like(components, -1)
    place = torch.zeros_like(components)  # among those at the same distance
    steps = 0
    while len(frontier):
        distance[frontier], steps = steps, steps + 1
        place[frontier] = torch.arange(len(frontier), device=frontier.device)
        frontier = _next_frontier(level, distance, place, steps, degrees)
    order = torch.argsort(place, stable=True)
    order = order[torch.argsort(distance[order], stable=True)]
    return order[torch.argsort(components[order], stable=True)]


def _next_frontier(level: Level, distance: Tensor, place: Tensor, steps: int, degrees: Tensor) -> Tensor:
    """Return the vertices beyond those of the last step, in the order of their first neighbor there."""
    is_edge = (distance[level.rows] == steps - 1) & (distance[level.columns] < 0)
    reached = level.columns[is_edge]
    parents = torch.full_like(distance, LARGEST).scatter_reduce(
        0, reached, place[level.rows[is_edge]], "amin"
    )
    found: Tensor = reached.unique()
    found = found[torch.argsort(degrees[found], stable=True)]
    return found[torch.argsort(parents[found], stable=True)]


def _components(level: Level) -> Tensor:
    """Return for each vertex the lowest vertex that it is connected to."""
    labels = level.ids
    while True:
        found = labels.scatter_reduce(0, level.rows, labels[level.columns], "amin")
        found = torch.minimum(found, labels.scatter_reduce(0, labels, found, "amin")[labels])
        found = found[found]
        if torch.equal(found, labels):
            return labels
        labels = found


def _first_of_each(preference: Tensor, components: Tensor) -> Tensor:
    least = torch.full_like(preference, LARGEST).scatter_reduce(0, components, preference, "amin")
    return (preference == least[components]).nonzero().squeeze(1)
