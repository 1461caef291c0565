"""Heterogeneous graphs: one layer per edge type, like PyG's ``HeteroConv``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, ModuleDict

from scorch._src.name_hints import suggests_keywords
from scorch._src.nn.layer import Layer
from scorch.errors import ArgumentError, OperandError, ScorchError, ScorchWarning, add_note, kind_of

EdgeType = tuple[str, str, str]
JOINS = ("sum", "mean", "min", "max", "cat", None)


class HeteroConv(Layer):
    """Apply one layer per edge type and combine the results per node type, like PyG's ``HeteroConv``.

    Args:
        convs: a layer for each edge type ``(source, relation, target)``.
        aggr: how to combine the results of several edge types at one node type: ``"sum"``, ``"mean"``,
            ``"min"``, ``"max"`` or ``"cat"``; None stacks them in dimension 1.

    Raises:
        ArgumentError: an edge type is not a tuple of three strings, or its layer adds self-loops between
            different node types.

    Example:

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
        >>> {kind: tuple(features.shape) for kind, features in layer(x, edges).items()}
        {'paper': (3, 4)}
    """

    @suggests_keywords
    def __init__(self, convs: Mapping[EdgeType, Module], aggr: str | None = "sum") -> None:
        super().__init__()
        _check_dict("convs", convs, "one layer by edge type")
        if aggr not in JOINS:
            raise ArgumentError(f"aggr must be one of {', '.join(map(repr, JOINS))}, but got {aggr!r}")
        for kind, layer in convs.items():
            _check_edge_type(kind, layer)
        unchanged = {kind[0] for kind in convs} - {kind[2] for kind in convs}
        if unchanged:
            names = ", ".join(map(repr, sorted(unchanged)))
            warnings.warn(
                f"the output will not contain {names}, because no edge type has it as target; add reverse "
                "edges to update these nodes",
                ScorchWarning,
                stacklevel=2,
            )
        self.edge_types, self.aggr = list(convs), aggr
        self.convs = ModuleDict({_key_of(kind): layer for kind, layer in convs.items()})

    def reset_parameters(self) -> None:
        """Reset the parameters of all layers."""
        for layer in self.convs.values():
            layer.reset_parameters()  # type: ignore[operator]

    def forward(
        self, x_dict: Mapping[str, Tensor], edge_index_dict: Mapping[EdgeType, Any], **options: Any
    ) -> dict[str, Tensor]:
        """Return the new features by node type.

        Args:
            x_dict: the features by node type.
            edge_index_dict: the edges by edge type; layers without edges are skipped.
            options: more arguments for the layers, as dictionaries by edge type or node type whose names end
                in ``_dict``, such as ``edge_attr_dict``.

        Raises:
            OperandError: an argument is not a dictionary.
            ArgumentError: there are no features for the source of an edge type, or no edges for any layer.
        """
        for name in options:
            if not name.endswith("_dict"):
                raise ArgumentError(
                    f"forward() got an unexpected keyword argument {name!r}; arguments of the layers are "
                    f"dictionaries by type, whose names end in '_dict', as in {name}_dict={{...}}"
                )
        _check_dict("x_dict", x_dict, "the features by node type")
        _check_dict("edge_index_dict", edge_index_dict, "the edges by edge type")
        kinds = [kind for kind in self.edge_types if kind in edge_index_dict]
        if self.edge_types and edge_index_dict and not kinds:
            raise ArgumentError(
                f"edge_index_dict has no edge type of the layers, {_listed(self.edge_types)}, but "
                f"{_listed(edge_index_dict)}"
            )
        arrived: dict[str, list[Tensor]] = {}
        for kind in kinds:
            nodes = _part(x_dict, kind)
            if nodes is None or (isinstance(nodes, tuple) and nodes[0] is None):
                raise ArgumentError(
                    f"x_dict has no features for {kind[0]!r}, the source of {kind}, but for {_listed(x_dict)}"
                )
            more = {name.removesuffix("_dict"): _part(given, kind) for name, given in options.items()}
            more = {name: value for name, value in more.items() if value is not None}
            try:
                found = self.convs[_key_of(kind)](nodes, edge_index_dict[kind], **more)
            except ScorchError as error:
                add_note(error, f"in the layer for {kind}")
                raise
            arrived.setdefault(kind[2], []).append(found)
        return {target: _join(found, self.aggr) for target, found in arrived.items()}

    def extra_repr(self) -> str:
        return f"aggr={self.aggr}"


def _check_edge_type(kind: Any, layer: Module) -> None:
    if not isinstance(kind, tuple) or len(kind) != 3 or not all(isinstance(name, str) for name in kind):
        raise ArgumentError(
            f"an edge type must be a tuple (source, relation, target) of strings, but got {kind!r}"
        )
    if kind[0] != kind[2] and getattr(layer, "add_self_loops", False):
        raise ArgumentError(
            f"{type(layer).__name__} adds self-loops, but edges of type {kind} connect different node "
            "types; set add_self_loops=False"
        )


def _check_dict(name: str, given: Any, contents: str) -> None:
    if not isinstance(given, Mapping):
        raise OperandError(f"{name} must be a dictionary, {contents}, but got {kind_of(given)}")


def _listed(kinds: Iterable[Any]) -> str:
    return ", ".join(map(str, kinds))


def _key_of(kind: EdgeType) -> str:
    """Return the name of the layer in a ``state_dict``, which is PyG's."""
    return f"<{'___'.join(kind)}>".replace(".", "#")


def _part(given: Mapping[Any, Any], kind: EdgeType) -> Any:
    """Return the argument for an edge type: that of the edges, of the nodes, or a pair (sources, targets)."""
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
