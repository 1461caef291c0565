"""Graphs with several types of nodes and edges: one layer for each edge type, as PyG's ``HeteroConv``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, ModuleDict

from scorch.errors import ArgumentError, ScorchWarning

EdgeType = tuple[str, str, str]
JOINS = ("sum", "mean", "min", "max", "cat", None)


class HeteroConv(Module):
    """Call a layer for each edge type ``(source, relation, target)``, and join what arrives at a node type.

    >>> import torch
    >>> from scorch import nn
    >>> layer = nn.HeteroConv({
    ...     ("author", "writes", "paper"): nn.SAGEConv((-1, -1), 4),
    ...     ("paper", "cites", "paper"): nn.GCNConv(-1, 4),
    ...     ("paper", "written_by", "author"): nn.SAGEConv((-1, -1), 4),
    ... })
    >>> x = {"author": torch.ones(2, 3), "paper": torch.ones(3, 5)}
    >>> edges = {
    ...     ("author", "writes", "paper"): torch.tensor([[0, 1], [2, 0]]),
    ...     ("paper", "cites", "paper"): torch.tensor([[0, 1], [1, 2]]),
    ... }
    >>> {kind: tuple(found.shape) for kind, found in layer(x, edges).items()}
    {'paper': (3, 4)}

    ``aggr`` joins by ``sum``, ``mean``, ``min``, ``max`` or ``cat``, or with None stacks in dimension 1.
    """

    def __init__(self, convs: Mapping[EdgeType, Module], aggr: str | None = "sum") -> None:
        super().__init__()
        if aggr not in JOINS:
            raise ArgumentError(f"aggr is {aggr!r}; it may be one of {', '.join(map(repr, JOINS))}")
        for kind, layer in convs.items():
            _check_edge_type(kind, layer)
        unchanged = {kind[0] for kind in convs} - {kind[2] for kind in convs}
        if unchanged:
            warnings.warn(
                f"no edge type ends at {', '.join(sorted(unchanged))}: its nodes get no new features",
                ScorchWarning,
                stacklevel=2,
            )
        self.edge_types, self.aggr = list(convs), aggr
        self.convs = ModuleDict({_key_of(kind): layer for kind, layer in convs.items()})

    def reset_parameters(self) -> None:
        for layer in self.convs.values():
            layer.reset_parameters()  # type: ignore[operator]

    def forward(
        self, x_dict: Mapping[str, Tensor], edge_index_dict: Mapping[EdgeType, Any], **options: Any
    ) -> dict[str, Tensor]:
        """Return new features by node type.

        ``options`` are further arguments of layers, dictionaries with names that end in ``_dict``:
        ``edge_attr_dict={edge type: features}``, or by node type. Edge types without a graph are left out.
        """
        for name in options:
            if not name.endswith("_dict"):
                raise ArgumentError(f"{name!r} is no dictionary by type: its name must end in '_dict'")
        arrived: dict[str, list[Tensor]] = {}
        for kind in self.edge_types:
            if kind in edge_index_dict:
                more = {name.removesuffix("_dict"): _part(given, kind) for name, given in options.items()}
                more = {name: value for name, value in more.items() if value is not None}
                layer = self.convs[_key_of(kind)]
                found = layer(_part(x_dict, kind), edge_index_dict[kind], **more)
                arrived.setdefault(kind[2], []).append(found)
        return {target: _join(found, self.aggr) for target, found in arrived.items()}

    def extra_repr(self) -> str:
        return f"aggr={self.aggr}"


def _check_edge_type(kind: Any, layer: Module) -> None:
    if not isinstance(kind, tuple) or len(kind) != 3 or not all(isinstance(name, str) for name in kind):
        raise ArgumentError(f"{kind!r} is no edge type; that is a tuple (source, relation, target) of names")
    if kind[0] != kind[2] and getattr(layer, "add_self_loops", False):
        raise ArgumentError(
            f"{type(layer).__name__} adds loops, which {kind} cannot have, as its ends have different "
            "types: give it add_self_loops=False"
        )


def _key_of(kind: EdgeType) -> str:
    """Return the name that the layer has in a ``state_dict``, PyG's."""
    return f"<{'___'.join(kind)}>".replace(".", "#")


def _part(given: Mapping[Any, Any], kind: EdgeType) -> Any:
    """Return what is given for an edge type: of edges, of its nodes, or a pair of its sources and targets."""
    source, _, target = kind
    if kind in given:
        return given[kind]
    if source == target:
        return given.get(source)
    pair = given.get(source), given.get(target)
    return None if all(part is None for part in pair) else pair


def _join(found: list[Tensor], aggr: str | None) -> Tensor:
    if aggr is None:
        return torch.stack(found, 1)
    if aggr == "cat":
        return torch.cat(found, -1)
    if len(found) == 1:
        return found[0]
    together = torch.stack(found)
    return getattr(together, {"min": "amin", "max": "amax"}.get(aggr, aggr))(0)  # type: ignore[no-any-return]
