"""Each process reads its own rows of files, whatever the cuts."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.distributed as dist

import scorch
import scorch.distributed as sd
from processes import in_processes
from scorch._src.distributed.cuts import cut_by_work, cut_together
from scorch._src.io.mapped_rows import MemmapSparseDataset
from scorch.errors import CommunicationError, FileError, MissingFileError, ShapeError
from scorch.utils.data import RowWriter


def pieces(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    whole = torch.rand(50, 50, generator=generator).to(dtype)
    whole[torch.rand(50, 50, generator=generator) < 0.8] = 0
    whole[7] = 1
    return [whole[:9], whole[9:9], whole[9:33], whole[33:]]


def write_pieces(folder: str, dtype: torch.dtype = torch.float32) -> None:
    for number, piece in enumerate(pieces(dtype)):
        with RowWriter(f"{folder}/part{number}.safetensors", columns=50, dtype=dtype) as writer:
            writer.append(scorch.from_torch(piece, format="csr"))


def load_and_compare(rank: int, folder: str) -> None:
    world, dense = dist.get_world_size(), torch.cat(pieces())
    S = scorch.from_torch(dense, format="csr")
    count = 0
    read = MemmapSparseDataset._copy_rows

    def counting(self, rows, begin, end):
        nonlocal count
        count += int((end - begin).sum())
        return read(self, rows, begin, end)

    MemmapSparseDataset._copy_rows = counting
    A = sd.load_rows(f"{folder}/part*.safetensors")
    assert torch.equal(A.cuts, sd.cuts(S, world)) and torch.equal(A.gather().to_dense(), dense)
    assert count == A.local.nnz  # no entries but its own
    weighed = sd.load_rows(f"{folder}/part*.safetensors", features=[16, 8])
    assert torch.equal(weighed.cuts, sd.cuts(S, world, features=[16, 8]))
    given = sd.load_rows(
        [f"{folder}/part0.safetensors"], cuts=[0, 0, 4, 9], columns=[0, 1, 2, 50], wire=torch.bfloat16
    )
    assert given.rows.own == (0, 4, 5)[rank] and given.wire == torch.bfloat16
    assert torch.equal(given.gather().to_dense(), dense[:9])
    even = sd.load_rows(f"{folder}/part*.safetensors", balance="rows", format="coo")
    assert even.cuts.tolist() == [0, 16, 33, 50] and str(even.format) == "coo"
    with pytest.raises(MissingFileError, match="no files match"):
        sd.load_rows(f"{folder}/none*.safetensors")
    with pytest.raises(FileError, match=r"scorch\.save"):
        sd.load_rows(f"{folder}/graph.npz")
    with pytest.raises(MissingFileError if rank == 1 else CommunicationError, match="no such file"):
        sd.load_rows(f"{folder}/part{9 if rank == 1 else 0}.safetensors")
    with pytest.raises(ShapeError, match="cannot be concatenated"):
        sd.load_rows([f"{folder}/part0.safetensors", f"{folder}/double/part0.safetensors"])


def cut_in_pieces(rank: int) -> None:
    """Cuts that processes find together are those of one."""
    world = dist.get_world_size()
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        rows = [0, 1, 2, 7, 40][seed % 5]
        lengths = torch.randint(0, [1, 3, 100][seed % 3], (rows,), generator=generator)
        own = rows * rank // world, rows * (rank + 1) // world
        found = cut_together(lengths[slice(*own)], own[0], rows, dist.group.WORLD, [4, 2][: seed % 3])
        assert torch.equal(found, cut_by_work(lengths, world, [4, 2][: seed % 3])), (seed, found)


def load_all(rank: int, folder: str) -> None:
    load_and_compare(rank, folder)
    cut_in_pieces(rank)


def test_each_process_reads_its_own_rows_of_files(tmp_path):
    write_pieces(str(tmp_path))
    (tmp_path / "double").mkdir()
    write_pieces(str(tmp_path / "double"), torch.float64)
    in_processes(functools.partial(load_all, folder=str(tmp_path)), tmp_path, 3)
