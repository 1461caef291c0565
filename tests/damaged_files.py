"""Files of sparse tensors that are not what they say: damaged by chance, or made so on purpose.

``draw_file(seed, kind, folder)`` writes one. Bytes are changed, cut and repeated; arrays have numbers that
are negative, huge or of another dtype, or lie where values or other tensors lie; headers name sizes and
blocks that fit no memory. ``READERS`` has who reads such a file, and ``tensors_in`` what was found.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import scorch
from scorch import SparseTensor
from scorch._src.io.archive import arrays_of, describe_tensor
from scorch._src.io.mapped_rows import MemmapSparseDataset
from scorch._src.io.pickling import make_packed, make_pattern, make_storage, make_tensor

FORMATS = ("csr", "coo", "csc", "dcsr", "bsr(2,2)")
FAR = (-1, -(2**31), 10**6, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
SIZES = (*FAR, 0, 1, 2**63, 10**30, 1.5, "3", None, float("inf"))


class Draw:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def pick(self, *options: Any) -> Any:
        return self.random.choice(options)

    def tensor(self, format: str) -> SparseTensor:
        rows, columns = self.pick(1, 3, 4), self.pick(2, 4, 5)
        numbers = torch.randint(1, 9, (rows, columns), generator=self.generator).float()
        kept = torch.rand(rows, columns, generator=self.generator) < 0.6
        made = scorch.from_torch(torch.where(kept, numbers, 0), format=format)
        assert isinstance(made, SparseTensor)
        return made

    def damage(self, data: bytes) -> bytes:
        """Bytes with a few of them changed, cut off or repeated."""
        changed = bytearray(data)
        for _ in range(self.pick(1, 1, 2, 4)):
            at = self.random.randrange(max(len(changed), 1))
            match self.pick("flip", "flip", "set", "cut", "repeat", "zero"):
                case "flip" if changed:
                    changed[at] ^= 1 << self.random.randrange(8)
                case "set" if changed:
                    changed[at] = self.random.randrange(256)
                case "cut":
                    del changed[at : at + self.pick(1, 4, 10**6)]
                case "repeat":
                    changed[at:at] = changed[at : at + self.pick(1, 8, 40)]
                case _:
                    changed[at : at + 8] = bytes(len(changed[at : at + 8]))
        return bytes(changed)

    def array(self, array: torch.Tensor) -> torch.Tensor:
        """An index array with something wrong, or nothing."""
        found = array.clone()
        match self.pick("number", "number", "short", "long", "dtype", "order", "shape", "repeated", "right"):
            case "number" if found.numel():
                place = self.random.randrange(found.numel())
                found = found.to(torch.int64)
                found.view(-1)[place] = self.pick(*FAR)
            case "short":
                found = found[:-1]
            case "long":
                found = torch.cat([found, found])
            case "dtype":
                dtypes = (torch.float32, torch.int64, torch.uint8, torch.bool, torch.complex64, torch.int16)
                found = found.to(self.pick(*dtypes))
            case "order":
                found = found.flip(0)
            case "shape":
                found = found.reshape(1, -1)
            case "repeated" if found.numel():
                found = found.reshape(-1)[:1].expand(self.pick(found.numel(), 2**40))
        return found

    def facts(self, facts: dict[str, Any]) -> dict[str, Any]:
        """What is said of a tensor, with something wrong."""
        found = json.loads(json.dumps(facts))
        match self.pick("shape", "blocks", "levels", "order", "dtype", "nothing", "missing"):
            case "shape":
                found["shape"][self.pick(0, -1)] = self.pick(*SIZES)
            case "blocks":
                size = self.pick(2**40, 2**62, 0, -1, 3, "2")
                found["format"] = {"levels": "dsdd", "order": [0, 1, 0, 1], "blocks": [[0, size], [1, size]]}
            case "levels":
                found["format"]["levels"] = self.pick("ss", "dd", "sd", "xx", "", "dsss", 7)
            case "order":
                found["format"]["order"] = self.pick([1, 0], [0, 0], [0], [0, 7], "01", [0, 1.5])
            case "dtype":
                found["dtype"] = self.pick("int64", "float64", "nothing", 3, "bool", "complex64")
            case "missing":
                del found[self.pick(*found)]
        return found


# text ------------------------------------------------------------------------------------------------

WORDS = (
    "1",
    "2",
    "3",
    "-1",
    "0",
    "inf",
    "nan",
    "1e400",
    "-1e400",
    "1e30",
    "9" * 30,
    "9" * 5000,
    "2.5",
    "1e2",
    "x",
)


def write_text(draw: Draw, path: Path, tensor: SparseTensor) -> None:
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    scorch.save(plain, tensor)
    lines = plain.read_text().split("\n")
    if draw.pick(True, False):  # a file of another program, without our comment
        lines = [line for line in lines if "scorch:" not in line]
    for _ in range(draw.pick(1, 1, 2)):
        at = draw.random.randrange(len(lines))
        words = lines[at].split()
        if words and draw.pick(True, True, False):
            words[draw.random.randrange(len(words))] = draw.pick(*WORDS)
            lines[at] = " ".join(words)
        else:
            lines[at] = draw.pick("", "1 1", "1 1 1 1 1", "%", "# x", "1 1 1e400", f"{2**62} 1 1")
    data = "\n".join(lines).encode()
    data = draw.damage(data) if draw.pick(True, False, False) else data
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


# archives --------------------------------------------------------------------------------------------


def write_npz(draw: Draw, path: Path, tensor: SparseTensor) -> None:
    scorch.save(path, tensor)
    if draw.pick(True, False, False):
        path.write_bytes(draw.damage(path.read_bytes()))
        return
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    if "scorch" in arrays and draw.pick(True, False):
        facts = draw.facts(json.loads(arrays["scorch"].tobytes()))
        arrays["scorch"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    names = [name for name in arrays if name not in ("scorch", "format", "_is_array")]
    chosen = draw.pick(*names)
    changed = draw.array(torch.from_numpy(arrays[chosen]))
    arrays[chosen] = changed[: 10**4].numpy() if changed.dim() == 1 else changed.numpy()
    if draw.pick(True, False, False, False):
        del arrays[draw.pick(*arrays)]
    np.savez(path, **arrays)


def write_safetensors(draw: Draw, path: Path, tensor: SparseTensor) -> None:
    import safetensors.torch

    if draw.pick(True, False, False):
        scorch.save(path, {"a": tensor, "b": torch.ones(3)})
        path.write_bytes(draw.damage(path.read_bytes()))
        return
    facts, arrays = describe_tensor(tensor), arrays_of(tensor)
    facts["arrays"] = {part: part for part in arrays}
    arrays = {part: array.clone() for part, array in arrays.items()}
    match draw.pick("array", "facts", "shared", "dense", "both"):
        case "array":
            part = draw.pick(*arrays)
            arrays[part] = draw.array(arrays[part])[: 10**4].clone()
        case "facts":
            facts = draw.facts(facts)
        case "shared":  # values and coordinates in one memory
            values = next(array for part, array in arrays.items() if part.startswith("crd"))
            part = next(part for part in arrays if part.startswith("crd"))
            facts["arrays"]["values"], facts["dtype"] = part, str(values.dtype).removeprefix("torch.")
        case "dense":  # another tensor is the coordinates
            facts["arrays"][draw.pick(*arrays)] = "x"
        case _:
            facts["arrays"][draw.pick(*arrays)] = draw.pick("nowhere", 3, None, ["a"])
    arrays["x"] = torch.arange(5, dtype=torch.int32)
    named = {"S": facts, "x": {"shape": [5], "dtype": "int32", "arrays": {"values": "x"}}}
    safetensors.torch.save_file(arrays, path, metadata={"scorch": json.dumps(named)})


# pickles ---------------------------------------------------------------------------------------------


class Called:
    """Pickled as a call of ``function``."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.reduced = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced


def write_pickle(draw: Draw, path: Path, tensor: SparseTensor) -> None:
    options = {"_use_new_zipfile_serialization": draw.pick(True, False)}
    if draw.pick(True, False, False):
        torch.save({"a": tensor, "b": torch.ones(3)}, path, **options)
        path.write_bytes(draw.damage(path.read_bytes()))
        return
    torch.save(draw_content(draw, tensor), path, **options)


def draw_content(draw: Draw, tensor: SparseTensor) -> dict[str, Any]:
    facts, arrays = describe_tensor(tensor), arrays_of(tensor)
    form, shape, values = facts["format"], tuple(facts["shape"]), arrays["values"].clone()
    levels = range(len(tensor.format))
    index = {name: array.clone() for name, array in arrays.items() if name != "values"}
    attributes: dict[Any, Any] = {}
    others: dict[str, Any] = {}
    what = draw.pick("array", "array", "values", "facts", "shared", "other", "attributes", "packed")
    match what:
        case "array":
            part = draw.pick(*index)
            index[part] = draw.array(index[part])
        case "values":
            values = draw.array(values)
        case "facts":
            changed = draw.facts(facts)
            form, shape = changed.get("format"), changed.get("shape")
            shape = tuple(shape) if isinstance(shape, list) else shape
        case "shared":
            part = next(name for name in index if name.startswith("crd"))
            index[part] = index[part].to(torch.int32)
            values = index[part][: values.numel()]
        case "other":
            others = {f"held {name}": array for name, array in index.items()}
        case "attributes":
            attributes = {
                draw.pick("storage", "source_values", "shape", "to_dense", "note", 3): torch.ones(2)
            }
        case "packed":
            return {"S": Called(make_tensor, _packed(draw, tensor, form, shape), False, {})}
    pos, crd = (tuple(index.get(f"{name}{level}") for level in levels) for name in ("pos", "crd"))
    pattern = Called(make_pattern, form, shape, pos, crd)
    storage = Called(make_storage, pattern, values)
    return {"S": Called(make_tensor, storage, draw.pick(True, False), attributes), **others}


def _packed(draw: Draw, tensor: SparseTensor, form: Any, shape: Any) -> Called:
    """Pieces of one memory, which may lie over each other."""
    pieces, size = [], 0
    for array in tensor.storage.tensors:
        pieces.append((array.dtype, size, array.numel()))
        size += array.numel() * array.element_size()
    memory = torch.zeros(size, dtype=torch.uint8)
    for array, (_, begin, count) in zip(tensor.storage.tensors, pieces, strict=True):
        memory[begin : begin + count * array.element_size()] = array.view(torch.uint8)
    at = draw.random.randrange(len(pieces))
    dtype, begin, count = pieces[at]
    wrong = [(dtype, 0, count), (dtype, begin, count + 1), (dtype, -4, count), (dtype, begin, 2**62)]
    pieces[at] = draw.pick(pieces[at], *wrong, (torch.int64, 0, 1), ("int32", 0, 1))
    return Called(make_packed, form, shape, memory, pieces)


# both ends -------------------------------------------------------------------------------------------

WRITERS: dict[str, Callable[[Draw, Path, SparseTensor], None]] = {
    ".mtx": write_text,
    ".mtx.gz": write_text,
    ".tns": write_text,
    ".npz": write_npz,
    ".safetensors": write_safetensors,
    ".pt": write_pickle,
}


def draw_file(seed: int, kind: str, folder: Path, formats: Sequence[str] = FORMATS) -> Path:
    draw = Draw(seed)
    path = folder / f"{seed}{kind}"
    WRITERS[kind](draw, path, draw.tensor(draw.pick(*formats)))
    return path


def by_scorch(path: Path) -> Any:
    return scorch.load(path)


def by_torch(path: Path) -> Any:
    return torch.load(path, weights_only=True)


def by_torch_mapped(path: Path) -> Any:
    return torch.load(path, weights_only=True, mmap=True)


def by_rows(path: Path) -> Any:
    rows = MemmapSparseDataset(path, "S")
    return rows[list(range(len(rows)))]


READERS: dict[str, list[Callable[[Path], Any]]] = {
    **{kind: [by_scorch] for kind in WRITERS},
    ".safetensors": [by_scorch, by_rows],
    ".pt": [by_scorch, by_torch, by_torch_mapped],
}


def tensors_in(found: Any) -> Iterable[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, dict):
        for value in found.values():
            yield from tensors_in(value)
    elif isinstance(found, list | tuple):
        for value in found:
            yield from tensors_in(value)
