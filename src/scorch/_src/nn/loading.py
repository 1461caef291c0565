"""Load models from files: layers become sparse where the file has them so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from scorch._src.nn.sparse_embedding import SparseEmbedding
from scorch._src.nn.sparse_linear import SparseLinear
from scorch._src.nn.sparsify import replace_modules
from scorch._src.nn.timing import PRUNABLE_LAYERS
from scorch.errors import FileError, OperandError


def load_sparse(model: torch.nn.Module, state_dict: Mapping[str, Any]) -> torch.nn.Module:
    """Load the ``state_dict`` of a sparse model into a model of the same modules, dense or sparse.

    Linear and Embedding layers that are sparse in ``state_dict`` become so, in the same format, and those
    that are dense in it become dense; then it is loaded as by ``model.load_state_dict``. Returns the model,
    which is changed.
    """
    if not isinstance(model, torch.nn.Module):
        raise OperandError(f"load_sparse takes a torch.nn.Module, not a {type(model).__name__}")
    suffix = "pattern.format"
    sparse = {name[: -len(suffix)].rstrip(".") for name in state_dict if name.endswith(suffix)}
    replaced: dict[torch.nn.Module, torch.nn.Module] = {}
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, module in modules.items():
        is_sparse = name in sparse or f"{name}.table".lstrip(".") in sparse
        replacement = _convert_layer(module, is_sparse)
        if replacement is not None and module not in replaced:
            replaced[module] = replacement.train(module.training)
    missing = sorted(name for name in sparse if name.removesuffix("table").rstrip(".") not in modules)
    if missing:
        raise FileError(f"the model has no layer {missing[0]!r}, which is sparse in the state_dict")
    model = replace_modules(model, replaced)
    model.load_state_dict(state_dict)
    return model


def _convert_layer(module: torch.nn.Module, is_sparse: bool) -> torch.nn.Module | None:
    """Return the layer as it is in the file, without its values; None if it is of that kind already."""
    if is_sparse and isinstance(module, torch.nn.Linear) and type(module) in PRUNABLE_LAYERS:
        has_bias = module.bias is not None
        return SparseLinear(module.in_features, module.out_features, 1.0, has_bias, dtype=module.weight.dtype)
    if is_sparse and type(module) is torch.nn.Embedding:
        table = SparseLinear(
            module.embedding_dim, module.num_embeddings, 1.0, False, dtype=module.weight.dtype
        )
        return SparseEmbedding(table, module.padding_idx)
    if not is_sparse and isinstance(module, SparseLinear):
        has_bias = module.bias is not None
        return torch.nn.Linear(module.in_features, module.out_features, has_bias, dtype=module.values.dtype)
    if not is_sparse and isinstance(module, SparseEmbedding):
        return torch.nn.Embedding(
            module.num_embeddings, module.embedding_dim, module.padding_idx, dtype=module.table.values.dtype
        )
    return None
