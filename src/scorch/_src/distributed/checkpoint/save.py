"""Checkpoints of sharded tensors, dense rows and optimizers through ``torch.distributed.checkpoint``."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from scorch._src.distributed.build import group_of
from scorch._src.distributed.checkpoint.entry_state import EntryOrder, state_of
from scorch._src.distributed.checkpoint.runs import Run
from scorch._src.distributed.communication.agreement import agree
from scorch._src.distributed.communication.collectives import Group, rank_in, reporting
from scorch._src.distributed.repartition import repartition
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.name_hints import suggests_keywords
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import look_up
from scorch.errors import ArgumentError, FileError, OperandError

Tensor = torch.Tensor
CONTENTS = "scorch"  # the name of the description of how the arrays of a checkpoint belong together


@suggests_keywords
def dense_rows(x: Tensor, A: RowSharded, along: str = "rows") -> Run:
    """Mark a dense tensor as this rank's rows of a sharded tensor, for a checkpoint.

    ``torch.distributed.checkpoint.load`` loads into ``x``; ``scorch.distributed.load`` returns new rows.

    Args:
        x: this rank's rows.
        A: the sharded tensor that the rows belong to.
        along: whether they are sharded like the ``"rows"`` or the ``"columns"`` of ``A``.

    Returns:
        The rows, marked; an entry for the dictionary that ``save`` takes.

    Raises:
        ShapeError: ``x`` does not have the rows of this rank.
        ArgumentError: ``along`` is neither ``"rows"`` nor ``"columns"``.

    Example::

        sd.save({"A": A, "x": sd.dense_rows(x, A)}, "checkpoint")
    """
    if along not in ("rows", "columns"):
        raise ArgumentError(f"along must be 'rows' or 'columns', but got {along!r}")
    plan = A.rows if along == "rows" else A.columns
    plan.check("x", x)
    return Run(x, plan.begin, plan.extent, A.group).belonging_to(A, along)


@suggests_keywords
def optimizer_state(optimizer: torch.optim.Optimizer, *tensors: RowSharded | Run) -> dict[str, Any]:
    """Return the state of an optimizer for a checkpoint, sharded like its parameters.

    Args:
        optimizer: the optimizer.
        tensors: the sharded parameters: tensors whose ``local`` is a parameter, and dense parameters as
            ``dense_rows(x, A)``. The state of all other parameters is the same on all ranks.

    Returns:
        A state dictionary for ``save``.

    Raises:
        AttributeError: ``optimizer`` has no ``state_dict``.

    Example::

        sd.save({"A": A, "optimizer": sd.optimizer_state(optimizer, A)}, "checkpoint")
    """
    result = optimizer.state_dict()
    params = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, state in result["state"].items():
        for tensor in tensors:
            source = tensor.local if isinstance(tensor, RowSharded) else tensor.source
            if params[number] is source:
                result["state"][number] = _wrapped(state, tensor)
    return result


def _wrapped(state: Mapping[str, Any], tensor: RowSharded | Run) -> dict[str, Any]:
    if isinstance(tensor, RowSharded):
        order, size = EntryOrder(tensor), len(tensor.local.storage.values)
        return {
            name: order.run(value).belonging_to(tensor, "entries") if _has_rows(value, size) else value
            for name, value in state.items()
        }
    return {
        name: dense_rows(value, tensor.like, tensor.along) if _has_rows(value, len(tensor.rows)) else value
        for name, value in state.items()
    }


def _has_rows(value: Any, size: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == size


@suggests_keywords
def save(state: Mapping[str, Any], path: str | os.PathLike[str], mesh: Any = None) -> None:
    """Save sharded tensors, dense rows and anything else to a folder; every rank writes its own shard.

    An existing checkpoint is replaced once the new one is complete: if a rank fails, the old one remains.

    Args:
        state: a (nested) dictionary. Tensors that are neither sharded nor ``dense_rows`` must be the same on
            all ranks.
        path: the folder.
        mesh: the mesh or process group; by default that of the sharded tensors.

    Raises:
        FileError: writing failed.

    Example::

        sd.save({"A": A, "x": sd.dense_rows(x, A), "epoch": 3}, "checkpoint")
        state = sd.load("checkpoint", mesh)
    """
    group, folder = _group_of_state(state, mesh), Path(path)
    arrays, contents = _flatten_state(state)
    agree(group, "save", (str(folder), sorted(arrays)), lambda facts: f"{facts[0]} with {facts[1]}")
    new = folder.with_name(folder.name + ".new")
    if rank_in(group) == 0:
        shutil.rmtree(new, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
    agree(group, "save", "begun")
    with _checkpointing("save", group):
        look_up("torch.distributed.checkpoint.save")(
            {**arrays, CONTENTS: json.dumps(contents)}, checkpoint_id=str(new), **_options("Save", group)
        )
    if rank_in(group) == 0:
        old = old_folder(folder)
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            os.replace(folder, old)
        os.replace(new, folder)
        shutil.rmtree(old, ignore_errors=True)
    agree(group, "save", "done")


def _group_of_state(state: Mapping[str, Any], mesh: Any) -> Group:
    """Return the process group of a mesh, or that of the first sharded tensor."""
    sharded = [value for _, value in _leaves(state, ()) if isinstance(value, RowSharded)]
    return sharded[0].group if mesh is None and sharded else group_of(mesh)


def old_folder(folder: Path) -> Path:
    """Return where the old checkpoint is while it is replaced."""
    return folder.with_name(folder.name + ".old")


def _options(direction: str, group: Group) -> dict[str, Any]:
    """Return the process group, and a planner that takes names and objects as they are."""
    planner = look_up(f"torch.distributed.checkpoint.Default{direction}Planner")
    return {
        "process_group": group,
        "planner": planner(flatten_state_dict=False, flatten_sharded_tensors=False),
    }


@contextlib.contextmanager
def _checkpointing(what: str, group: Group) -> Iterator[None]:
    """Turn what PyTorch raises in a checkpoint into errors of ours."""
    failure: Any = look_up("torch.distributed.checkpoint.CheckpointException")
    with reporting(what, group), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TypedStorage is deprecated")  # of torch 2.8's own
        if group is None:
            warnings.filterwarnings("ignore", message="torch.distributed is ")
        try:
            yield
        except failure as error:
            reasons = "; ".join(f"rank {rank}: {found!r}" for rank, (found, _) in error.failures.items())
            raise FileError(f"{what} failed: {reasons}") from error


def read(arrays: dict[str, Any], folder: Path, group: Group) -> None:
    """Read arrays of a checkpoint into those passed by their names; plain objects are replaced."""
    with _checkpointing("load", group):
        look_up("torch.distributed.checkpoint.load")(
            arrays, checkpoint_id=str(folder), **_options("Load", group)
        )


# what belongs together -------------------------------------------------------------------------------


def _flatten_state(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays of a state by name, and how they belong together."""
    flat = {".".join(map(str, keys)): (keys, value) for keys, value in _leaves(state, ())}
    sharded = {name: value for name, (_, value) in flat.items() if isinstance(value, RowSharded)}
    arrays: dict[str, Any] = {}
    runs: dict[str, list[str]] = {}
    for name, (_, value) in flat.items():
        if isinstance(value, RowSharded):
            whole = repartition(value) if value.has_split_rows else value
            arrays |= {f"{name}.{part}": array for part, array in state_of(whole, value).items()}
        elif isinstance(value, SparseTensor):
            raise OperandError(
                f"{name} is an unsharded SparseTensor; save the sharded tensor instead, or its values()"
            )
        else:
            arrays[name] = value
            if isinstance(value, Run):
                runs[name] = [value.along, _name_of(value.like, sharded)]
    paths = {name: list(keys) for name, (keys, _) in flat.items()}
    return arrays, {"paths": paths, "sharded": list(sharded), "runs": runs}


def _leaves(value: Any, keys: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, Mapping) and (value or not keys):
        for key, inner in value.items():
            if not isinstance(key, (str, int)):
                raise ArgumentError(f"the keys of a checkpoint must be strings or integers, but got {key!r}")
            yield from _leaves(inner, (*keys, key))
    else:
        yield keys, value


def _name_of(like: RowSharded | None, sharded: Mapping[str, RowSharded]) -> str:
    """Return the name of a sharded tensor, or of another with the same rows and columns."""
    for name, tensor in sharded.items():
        if tensor is like:
            return name
    for name, tensor in sharded.items():
        if like is not None and tensor.rows is like.rows and tensor.columns is like.columns:
            return name
    return ""
