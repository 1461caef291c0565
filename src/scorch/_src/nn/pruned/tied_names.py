"""The names by which Hugging Face's models know their tied weights, where those became sparse.

``save_pretrained`` stores a tied weight once, and ``tie_weights`` ties it again, by tables of names on the
models. The weight of a sparse layer has another name: that of its values.
"""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.nn.pruned.prunable import is_sparse_layer, tables_of

_TABLES = ("_tied_weights_keys", "all_tied_weights_keys")  # from each name to that of its source


def rename_tied_weights(model: torch.nn.Module) -> None:
    """Have the tables of tied weights in a model name the values of sparse layers."""
    for module in model.modules():
        for table in _TABLES:
            names: Any = getattr(module, table, None)
            if isinstance(names, dict):
                renamed = {_rename(module, name): _rename(module, source) for name, source in names.items()}
                if renamed != names:
                    setattr(module, table, renamed)


def _rename(model: torch.nn.Module, name: Any) -> Any:
    """Return the name of a weight as it is stored; other names and patterns of names as they are."""
    path, _, last = name.rpartition(".") if isinstance(name, str) else ("", "", "")
    try:
        layer = model.get_submodule(path)
    except AttributeError:
        return name
    matrices = tables_of(layer) if last == "weight" and is_sparse_layer(layer) else {}
    (table,) = matrices if len(matrices) == 1 else [None]
    return name if table is None else ".".join(filter(None, (path, table, "values")))
