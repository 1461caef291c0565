"""Load models from files: layers become sparse where the file stores them sparse."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

import torch

from scorch._src.devices import HOST
from scorch._src.name_hints import suggests_keywords
from scorch._src.nn.pattern import is_same_pattern
from scorch._src.nn.pruned.fused_modules import fuse_modules
from scorch._src.nn.pruned.prunable import Kind, Part, is_sparse_layer, kind_of_layer, parts_of, tables_of
from scorch._src.nn.pruned.replace_layers import replace_modules
from scorch._src.nn.pruned.tied_names import rename_tied_weights
from scorch._src.nn.sparse_linear import SparseLinear
from scorch._src.nn.weights.saved_pattern import empty_pattern, pattern_from_words
from scorch._src.storage.storage import Storage
from scorch._src.tensor.autograd import sparse_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import FileError, OperandError, kind_of


@suggests_keywords
def load_sparse(model: torch.nn.Module, state_dict: Mapping[str, Any]) -> torch.nn.Module:
    """Load the ``state_dict`` of a sparse model into a dense or sparse model of the same architecture.

    Layers that are sparse in ``state_dict`` become sparse, in the same format, and those that are dense in it
    become dense; then everything is loaded as by ``model.load_state_dict``.

    Args:
        model: the model, which is modified in place. A model on the ``meta`` device takes over the tensors of
            ``state_dict`` as they are, which saves initializing its weights first.
        state_dict: the ``state_dict`` of a model that ``scorch.sparsify`` returned.

    Returns:
        The model, or its replacement if the model itself is one layer that becomes sparse or dense.

    Raises:
        OperandError: ``model`` is not a ``torch.nn.Module``, or ``state_dict`` not a mapping.
        FileError: the model has no layer for a sparse weight of ``state_dict``.

    Example:

        >>> import torch, scorch
        >>> def build():
        ...     return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU())
        >>> pruned = scorch.sparsify(build(), sparsity=0.9, prefer="size")
        >>> scorch.nn.load_sparse(build(), pruned.state_dict())[0].nnz
        205
    """
    if not isinstance(model, torch.nn.Module):
        raise OperandError(
            f"load_sparse expected a torch.nn.Module, but got {kind_of(model)}; call it as "
            "load_sparse(model, state_dict)"
        )
    if not isinstance(state_dict, Mapping):
        raise OperandError(
            f"load_sparse expected a state_dict, but got {kind_of(state_dict)}; load a file first, "
            "as in scorch.nn.load_sparse(model, scorch.load(path))"
        )
    state_dict = _with_tied_values(model, state_dict)
    is_meta = any(parameter.is_meta for parameter in model.parameters())
    read: dict[str, Any] = {}  # patterns and parameters, in the place of what they are read from
    replaced, ties = _convert_layers(model, state_dict, read)
    model = fuse_modules(replace_modules(model, replaced))
    for tie in ties:
        tie.make()
    state: Any = OrderedDict({**state_dict, **read})
    state._metadata = getattr(state_dict, "_metadata", None) or {}
    try:
        model.load_state_dict(state, assign=is_meta)
    except Exception:  # the layers that were there still have their weights
        fuse_modules(replace_modules(model, {new: old for old, new in replaced.items()}))
        raise
    rename_tied_weights(model)
    for tie in ties if is_meta else []:  # each parameter was assigned by itself
        if tie.is_in(state_dict):
            tie.make()
    return model


def _convert_layers(
    model: torch.nn.Module, state_dict: Mapping[str, Any], read: dict[str, Any]
) -> tuple[dict[torch.nn.Module, torch.nn.Module], list[_Tie]]:
    """Return what replaces the layers that are stored in another way, and which of these share values."""
    sparse = _sparse_layers(state_dict)
    replaced: dict[torch.nn.Module, torch.nn.Module] = {}
    known: set[str] = set()
    firsts: dict[int, tuple[SparseLinear, str]] = {}  # matrices by the parameters that they replace
    ties: list[_Tie] = []
    for name, module in model.named_modules(remove_duplicate=False):
        was_sparse, kind = is_sparse_layer(module), kind_of_layer(module)
        parts = parts_of(module)
        own = tables_of(module) if was_sparse else [part.table for part in parts]
        tables = {table: f"{name}.{table}".strip(".") for table in own}
        known.update(tables.values())
        is_sparse = not sparse.isdisjoint(tables.values())
        if module in replaced or is_sparse == was_sparse:
            continue
        if was_sparse:
            replacement = module.to_dense()
        else:
            assert kind is not None
            replacement = _make_sparse(module, kind, parts, tables, state_dict, read)
        is_training = replacement.training == module.training  # as its parts are, which were just made
        replaced[module] = replacement if is_training else replacement.train(module.training)
        ties += _find_ties(parts, tables, replacement, firsts)
    missing = sorted(sparse - known)
    if missing:
        raise FileError(
            f"the model has no layer {missing[0]!r}, which is sparse in the state_dict; pass a model of the "
            "same architecture as the one that was saved"
        )
    return replaced, ties


class _Tie(NamedTuple):
    """Two layers whose dense weights were the same parameter, and how a file names them."""

    first: SparseLinear
    first_prefix: str
    other: SparseLinear
    other_prefix: str

    def make(self) -> None:
        self.other.values, self.other.scales = self.first.values, self.first.scales

    def is_in(self, state_dict: Mapping[str, Any]) -> bool:
        """Whether both have the same values in a file; others are assigned one by one, as torch does."""
        return all(
            _is_same(state_dict.get(self.first_prefix + name), state_dict.get(self.other_prefix + name))
            for name in ("values", "scales")
        )


def _is_same(first: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if first is None or other is None or first.dtype != other.dtype or first.device != other.device:
        return first is other
    return torch.equal(first, other)


def _find_ties(
    parts: list[Part],
    tables: Mapping[str, str],
    layer: torch.nn.Module,
    firsts: dict[int, tuple[SparseLinear, str]],
) -> Iterator[_Tie]:
    """Find the layers before whose dense weights were the same parameters as those of ``parts``."""
    for part in parts if is_sparse_layer(layer) else []:
        own = tables_of(layer)[part.table], f"{tables[part.table]}.".lstrip(".")
        first = firsts.setdefault(id(part.parameter), own)
        if first is not own and is_same_pattern(first[0].pattern, own[0].pattern):
            yield _Tie(*first, *own)


def _with_tied_values(model: torch.nn.Module, state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the values of matrices that share those of another, which files may store only once."""
    values: dict[int, str] = {}  # names by the parameters that they replace
    lacking: list[tuple[str, int]] = []
    for name, module in model.named_modules(remove_duplicate=False):
        for table, key in _parameters_of(module).items():
            prefix = f"{name}.{table}".strip(".")
            if f"{prefix}.values" in state_dict:
                values.setdefault(key, f"{prefix}.values")
            elif f"{prefix}.pattern" in state_dict:
                lacking.append((f"{prefix}.values", key))
    added = {name: state_dict[values[key]] for name, key in lacking if key in values}
    if not added:
        return state_dict
    full: Any = OrderedDict({**state_dict, **added})
    full._metadata = getattr(state_dict, "_metadata", None) or {}
    return full  # type: ignore[no-any-return]


def _parameters_of(module: torch.nn.Module) -> dict[str, int]:
    """Return the identities of the parameters of a layer that its matrices are stored in, by their names."""
    if is_sparse_layer(module):
        return {table: id(matrix.values) for table, matrix in tables_of(module).items()}
    return {part.table: id(part.parameter) for part in parts_of(module)}


def _sparse_layers(state_dict: Mapping[str, Any]) -> set[str]:
    """Return the names of matrices that are sparse, in files of any version."""
    found = set()
    for name in state_dict:
        prefix = name.removesuffix(".format").removesuffix("pattern")
        if name in (f"{prefix}pattern", f"{prefix}pattern.format") and f"{prefix}values" in state_dict:
            found.add(prefix.rstrip("."))
    return found


def _make_sparse(
    module: torch.nn.Module,
    kind: Kind,
    parts: list[Part],
    tables: Mapping[str, str],
    state_dict: Mapping[str, Any],
    read: dict[str, Any],
) -> torch.nn.Module:
    """Return the layer as it is in the file."""
    prefixes = {table: f"{name}.".lstrip(".") for table, name in tables.items()}
    layer = kind.make(
        module,
        {
            part.table: _read_weight(
                part, prefixes[part.table], state_dict, read, kind.takes_any_weight_dtype
            )
            for part in parts
        },
    )
    for table, matrix in tables_of(layer).items():
        _take_parameters(matrix, prefixes[table], state_dict, read)
    return layer


def _take_parameters(
    matrix: SparseLinear, prefix: str, state_dict: Mapping[str, Any], read: dict[str, Any]
) -> None:
    """Note the values that a matrix has taken from the file, and let it take the bias, too."""
    for name, parameter in matrix._parameters.items():
        value = state_dict.get(f"{prefix}{name}")
        if parameter is None or not _can_be_taken(value, parameter.shape):
            continue
        if parameter.is_meta:
            parameter = torch.nn.Parameter(value, parameter.requires_grad)
            matrix.register_parameter(name, parameter)
        if parameter.is_set_to(value):
            read[f"{prefix}{name}"] = parameter


def _can_be_taken(value: Any, shape: tuple[int, ...]) -> TypeGuard[torch.Tensor]:
    """Whether a tensor of a file can become a parameter of this shape as it is."""
    is_plain = type(value) is torch.Tensor and value.device == HOST and value.layout == torch.strided
    return is_plain and value.shape == shape and value.is_floating_point()


def _read_weight(
    part: Part, prefix: str, state_dict: Mapping[str, Any], read: dict[str, Any], keeps_dtype: bool
) -> SparseTensor:
    """Return the weight of a table in place of that of a part; an empty one if the file is invalid.

    ``load_state_dict`` finds the problems again and reports them all.
    """
    values, words = state_dict.get(f"{prefix}values"), state_dict.get(f"{prefix}pattern")
    before, shape = getattr(part.owner, part.name), part.matrix_shape
    dtype, pattern = before.dtype, None
    if isinstance(values, torch.Tensor) and isinstance(words, torch.Tensor):
        with contextlib.suppress(ValueError, IndexError, TypeError):
            pattern = read[f"{prefix}pattern"] = pattern_from_words(words, shape, HOST)
        if keeps_dtype and values.dtype == torch.bfloat16 and dtype == torch.float32:
            dtype = values.dtype
    if pattern is None:
        pattern = empty_pattern(*shape)
    if before.is_meta:  # whose values are assigned, not copied
        if not _can_be_taken(values, (pattern.size,)):
            values = torch.empty(pattern.size, dtype=dtype, device=before.device)
        weight = SparseTensor(Storage(pattern, values))
        weight.is_given_away = True
        return weight
    if isinstance(values, torch.Tensor) and values.shape == (pattern.size,) and values.is_floating_point():
        return sparse_of(pattern, values.detach().to(HOST, dtype))
    return sparse_of(pattern, torch.zeros(pattern.size, dtype=dtype, device=HOST))
