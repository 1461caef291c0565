"""Checkpoints loaded by any number of ranks: lengths of rows first, then the rows that each rank owns."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from scorch._src.devices import HOST
from scorch._src.distributed.algorithms.choose import with_algorithm
from scorch._src.distributed.build import device_of, group_of
from scorch._src.distributed.checkpoint.entry_state import FACTS, EntryOrder, begin_of
from scorch._src.distributed.checkpoint.runs import Run
from scorch._src.distributed.checkpoint.save import CONTENTS, old_folder, read
from scorch._src.distributed.communication.agreement import agree
from scorch._src.distributed.communication.collectives import Group, rank_in, size_of
from scorch._src.distributed.communication.halo import Order, order_of
from scorch._src.distributed.cuts import as_cuts, check_features, cut_evenly, cut_together
from scorch._src.distributed.entries import from_entries
from scorch._src.distributed.repartition import repartition
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.io.archive import parse_dtype, parse_format
from scorch._src.name_hints import suggests_keywords
from scorch._src.torch_internals import look_up
from scorch.errors import FileError, MissingFileError, ShapeError

Tensor = torch.Tensor


@suggests_keywords
def load(
    path: str | os.PathLike[str],
    mesh: Any = None,
    *,
    cuts: Any = None,
    columns: Any = None,
    features: Sequence[int] = (),
    format: Any = None,
    device: Any = None,
) -> dict[str, Any]:
    """Load a checkpoint of ``save`` on any number of ranks; each reads its own rows.

    Sharded tensors are new ones, dense rows and optimizer states are those of this rank, everything else is
    as it was. Like all checkpoints of PyTorch, they may execute code when loaded: load only those you trust.

    Args:
        path: the folder.
        mesh: a 1-D ``DeviceMesh`` or a process group; all ranks by default.
        cuts: where the rows of each rank begin, or a dictionary of cuts by the names of sharded tensors and
            dense rows. By default, the same number of ranks keeps its shards, and another number gets shards
            of about the same work.
        columns: where the columns of each rank begin, in the same way.
        features: the widths of the layers, as in ``cuts``, to weigh rows against entries.
        format: the format of the local shards; the saved one by default.
        device: the device of all arrays; that of the mesh by default. Scalars stay on the CPU, where
            optimizers keep their step counts.

    Returns:
        The dictionary that was saved.

    Raises:
        MissingFileError: there is no such checkpoint.
        FileError: the checkpoint was not written by ``save``.

    Example::

        state = sd.load("checkpoint", mesh)
        A, x = state["A"], state["x"]
    """
    group, folder = group_of(mesh), Path(path)
    if not folder.exists() and old_folder(folder).exists():
        folder = old_folder(folder)  # whoever replaced it has ended in between
    check_features(features)
    facts = {"exists": folder.exists(), "cuts": _plain(cuts), "columns": _plain(columns)}
    facts |= {"features": list(features), "format": str(format)}
    agree(group, "load", (str(folder), facts), _describe)
    if not folder.exists():
        raise MissingFileError(f"no such checkpoint: {folder}")
    where = device_of(mesh, group, device) or HOST
    return _Loading(folder, mesh, group, features, format, where).load(cuts, columns)


def _plain(cuts: Any) -> Any:
    """Return cuts, or a dictionary of cuts, as lists that ranks can compare."""
    if isinstance(cuts, Mapping):
        return {name: _plain(found) for name, found in cuts.items()}
    return None if cuts is None else torch.as_tensor(cuts, device=HOST).reshape(-1).tolist()


def _describe(found: tuple[str, Mapping[str, Any]]) -> str:
    folder, facts = found
    options = ", ".join(f"{name}={value}" for name, value in facts.items() if name != "exists")
    return f"the checkpoint {folder} with {options}" if facts["exists"] else f"no checkpoint {folder}"


class _Loading:
    """A checkpoint that is being loaded."""

    def __init__(
        self,
        folder: Path,
        mesh: Any,
        group: Group,
        features: Sequence[int],
        format: Any,
        device: torch.device,
    ) -> None:
        self.folder, self.mesh, self.group = folder, mesh, group
        self.features, self.format, self.device = features, format, device
        metadata = look_up("torch.distributed.checkpoint.FileSystemReader")(str(folder)).read_metadata()
        self.stored = metadata.state_dict_metadata
        if CONTENTS not in self.stored:
            raise FileError(
                f"{folder} was not written by scorch.distributed.save; read it with "
                "torch.distributed.checkpoint.load into tensors that are sharded already"
            )
        self.contents = json.loads(self._read_objects([CONTENTS])[CONTENTS])

    def load(self, cuts: Any, columns: Any) -> dict[str, Any]:
        names = self.contents["sharded"]
        facts = self._read_objects([f"{name}.{FACTS}" for name in names])
        found = {name: _complete(json.loads(facts[f"{name}.{FACTS}"])) for name in names}
        _check_used(cuts, [one["shape"][0] for one in found.values()])
        row_cuts = self._row_cuts(found, cuts)
        values: dict[str, Any] = {
            name: self._load_tensor(
                name, one, row_cuts[name], self._column_cuts(name, one, row_cuts, columns)
            )
            for name, one in found.items()
        }
        values |= self._load_runs(values, cuts)
        values |= self._load_rest(values)
        values |= {name: _with_options_of(one, values[name]) for name, one in found.items()}
        result: dict[str, Any] = {}
        for name, keys in self.contents["paths"].items():
            _put(result, keys, values[name])
        return result

    # pieces --------------------------------------------------------------------------------------------

    def _read_objects(self, names: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = dict.fromkeys(names, "")
        if found:
            read(found, self.folder, self.group)
        return found

    def _run(self, name: str, begin: int, end: int) -> Run:
        """Allocate memory for some rows of an array of the checkpoint."""
        stored = self.stored[name]
        rows = torch.empty((end - begin, *stored.size[1:]), dtype=stored.properties.dtype, device=self.device)
        return Run(rows, begin, stored.size[0], self.group)

    def _own(self, cuts: Tensor) -> tuple[int, int]:
        rank = rank_in(self.group)
        return int(cuts[rank]), int(cuts[rank + 1])

    def _row_cuts(self, facts: Mapping[str, Any], cuts: Any) -> dict[str, Tensor]:
        """Return the cuts of each sharded tensor: those passed, or shards of about the same work."""
        parts = size_of(self.group)
        given = {
            name: _given(cuts, name, found["shape"][0], [] if self.features else found["rows"], parts)
            for name, found in facts.items()
        }
        even = {
            f"{name}.lengths": self._run(f"{name}.lengths", *self._own(cut_evenly(found["shape"][0], parts)))
            for name, found in facts.items()
            if given[name] is None
        }
        read(dict(even), self.folder, self.group)
        return {
            name: cut_together(
                even[f"{name}.lengths"].rows,
                even[f"{name}.lengths"].begin,
                found["shape"][0],
                self.group,
                self.features,
            )
            if given[name] is None
            else as_cuts("cuts", given[name], found["shape"][0], parts)
            for name, found in facts.items()
        }

    def _column_cuts(
        self, name: str, facts: Mapping[str, Any], row_cuts: Mapping[str, Tensor], columns: Any
    ) -> Tensor:
        (rows, extent), parts, mine = facts["shape"][:2], size_of(self.group), row_cuts[name]
        is_square = rows == extent and facts["rows"] == facts["columns"]
        found = _given(columns, name, extent, [] if is_square else facts["columns"], parts)
        if found is None:
            found = mine if rows == extent else cut_evenly(extent, parts)
        checked = as_cuts("columns", found, extent, parts)
        return mine if torch.equal(checked, mine) else checked

    def _load_tensor(self, name: str, facts: Mapping[str, Any], rows: Tensor, columns: Tensor) -> RowSharded:
        begin, end = self._own(rows)
        state = {f"{name}.lengths": self._run(f"{name}.lengths", begin, end)}
        read(dict(state), self.folder, self.group)
        lengths = state[f"{name}.lengths"].rows
        first, _ = begin_of(int(lengths.sum()), self.group, lengths)
        parts = [*(f"{name}.crd{dim}" for dim in range(1, len(facts["shape"]))), f"{name}.values"]
        entries = {part: self._run(part, first, first + int(lengths.sum())) for part in parts}
        read(dict(entries), self.folder, self.group)
        crd = [torch.repeat_interleave(torch.arange(begin, end, device=lengths.device), lengths)]
        crd += [entries[part].rows for part in parts[:-1]]
        values = entries[parts[-1]].rows.to(parse_dtype(facts["dtype"]))
        form = parse_format(facts["format"]) if self.format is None else self.format
        orders = self._load_orders(name, facts, rows, columns)
        return from_entries(crd, values, facts["shape"], rows, columns, self.group, form, self.mesh, orders)

    def _load_orders(
        self, name: str, facts: Mapping[str, Any], rows: Tensor, columns: Tensor
    ) -> tuple[Order | None, Order | None]:
        row_order = self._load_order(f"{name}.order", rows) if facts["has_order"] else None
        of_columns = facts["order_of_columns"]
        if of_columns == "order" and torch.equal(rows, columns):
            return row_order, row_order
        return row_order, self._load_order(f"{name}.{of_columns}", columns) if of_columns else None

    def _load_order(self, name: str, cuts: Tensor) -> Order | None:
        begin, end = self._own(cuts)
        state = {name: self._run(name, begin, end)}
        read(dict(state), self.folder, self.group)
        return order_of(state[name].rows, begin, self.group)

    def _load_runs(self, tensors: Mapping[str, RowSharded], cuts: Any) -> dict[str, Tensor]:
        """Return dense rows, and arrays that belong to the entries of sharded tensors."""
        runs: dict[str, Run] = {}
        orders = {name: EntryOrder(tensor) for name, tensor in tensors.items()}
        for name, (along, of) in self.contents["runs"].items():
            if along == "entries":
                begin = orders[of].begin
                runs[name] = self._run(name, begin, begin + len(orders[of].places))
            else:
                extent = self.stored[name].size[0]
                runs[name] = self._run(
                    name, *self._own(self._dense_cuts(name, extent, along, of, tensors, cuts))
                )
        read(dict(runs), self.folder, self.group)
        return {
            name: orders[of].spread(runs[name].rows, len(tensors[of].local.storage.values))
            if along == "entries"
            else runs[name].rows
            for name, (along, of) in self.contents["runs"].items()
        }

    def _dense_cuts(
        self, name: str, extent: int, along: str, of: str, tensors: Mapping[str, RowSharded], cuts: Any
    ) -> Tensor:
        if of:
            return tensors[of].rows.cuts if along == "rows" else tensors[of].columns.cuts
        given = _given(cuts, name, extent)
        parts = size_of(self.group)
        return cut_evenly(extent, parts) if given is None else as_cuts("cuts", given, extent, parts)

    def _load_rest(self, loaded: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is the same on all ranks."""
        rest: dict[str, Any] = {}
        for name in self.contents["paths"]:
            if name not in loaded:
                stored = self.stored[name]
                is_array = hasattr(stored, "size")
                device = self.device if is_array and len(stored.size) else HOST
                rest[name] = (
                    torch.empty(stored.size, dtype=stored.properties.dtype, device=device) if is_array else ""
                )
        if rest:
            read(rest, self.folder, self.group)
        return rest


def _complete(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a tensor with those that older checkpoints do not have."""
    is_square = facts["has_order"] and facts["rows"] == facts["columns"]
    before = {"order_of_columns": "order" if is_square else None, "wire": None, "split": False}
    return {**before, "algorithm": "halo", "replicas": 1, **facts}


def _with_options_of(facts: Mapping[str, Any], tensor: RowSharded) -> RowSharded:
    """Return a loaded tensor that exchanges rows as the saved one did, with at most as many replicas."""
    tensor.wire = None if facts["wire"] is None else parse_dtype(facts["wire"])
    if facts["split"] is not False:
        tensor = repartition(tensor, tensor.cuts, columns=tensor.columns.cuts, split=facts["split"])
    algorithm, replicas = facts["algorithm"], facts["replicas"]
    if algorithm == "1.5d":
        size = size_of(tensor.group)
        most = max(count for count in range(1, replicas + 1) if size % count == 0)
        return with_algorithm(tensor, algorithm, replicas=most)
    return tensor if algorithm == "halo" else with_algorithm(tensor, algorithm)


def _given(cuts: Any, name: str, rows: int, before: Sequence[int] = (), parts: int = 0) -> Any:
    """Return the cuts that the user passed for one tensor, or the saved ones for as many ranks, or None."""
    if isinstance(cuts, Mapping):
        found = cuts.get(name)
    else:
        found = (
            None if cuts is None or int(torch.as_tensor(cuts, device=HOST).reshape(-1)[-1]) != rows else cuts
        )
    return before if found is None and len(before) == parts + 1 else found


def _check_used(cuts: Any, rows: list[int]) -> None:
    """Raise if cuts match none of the tensors."""
    if cuts is None or isinstance(cuts, Mapping):
        return
    found = torch.as_tensor(cuts, device=HOST).reshape(-1)
    if not len(found) or int(found[-1]) not in rows:
        raise ShapeError(
            f"cuts must end with the number of rows, {' or '.join(map(str, dict.fromkeys(rows)))}, but got "
            f"{found.tolist()}"
        )


def _put(result: dict[str, Any], keys: list[Any], value: Any) -> None:
    for key in keys[:-1]:
        result = result.setdefault(key, {})
    result[keys[-1]] = value
