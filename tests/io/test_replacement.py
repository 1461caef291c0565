"""Saving a tensor writes one new file, completely or not at all, and nowhere else."""

from __future__ import annotations

import os
import random
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import scorch
from scorch._src.io import replacement
from scorch.errors import FileError, MissingFileError
from scorch.utils.data import RowWriter

KINDS = (".mtx", ".mtx.gz", ".tns", ".tns.gz", ".npz", ".safetensors", ".pt", ".pth")
STRANGER = 54321
needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files to somebody else"
)


def matrix(value: float = 2.0) -> scorch.SparseTensor:
    return scorch.sparse_coo_tensor([[0, 1], [1, 0]], [value, 3.0], (2, 2), format="csr")


def write(path: Path, tensor: scorch.SparseTensor) -> None:
    if path.name.startswith("rows"):
        with RowWriter(path) as rows:
            rows.append(tensor)
    else:
        scorch.save(path, tensor)


NAMES = [*(f"matrix{kind}" for kind in KINDS), "rows.safetensors"]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_the_file_is_left(name: str, tmp_path: Path) -> None:
    for value in (2.0, 5.0):
        write(tmp_path / name, matrix(value))
        assert os.listdir(tmp_path) == [name]
        assert torch.equal(scorch.load(tmp_path / name).to_dense(), matrix(value).to_dense())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_new_file_has_the_permissions_that_open_gives(name: str, mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        write(tmp_path / name, matrix())
        (tmp_path / "plain").write_bytes(b"")
    finally:
        os.umask(before)
    expected = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) & ~expected == 0
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) & 0o600 == 0o600


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_replaced_file_keeps_its_permissions(name: str, mode: int, tmp_path: Path) -> None:
    write(tmp_path / name, matrix())
    (tmp_path / name).chmod(mode)
    write(tmp_path / name, matrix(7.0))
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode


@pytest.mark.parametrize("kind", KINDS)
def test_failure_leaves_the_old_file_and_nothing_else(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"matrix{kind}"
    scorch.save(path, matrix())
    old = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(replacement.os, "replace", fail)
        with pytest.raises(OSError, match="disk is full"):
            scorch.save(path, matrix(9.0))
    assert os.listdir(tmp_path) == [path.name]
    assert path.read_bytes() == old


def test_planted_names_are_never_written_to(tmp_path: Path) -> None:
    """Whatever names were guessed before: they are there, they lead elsewhere, and stay as they are."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "shared"
    folder.mkdir()
    guesses = [
        f".{os.getpid()}-{threading.get_ident()}-matrix.pt",
        *(f".{pattern}matrix.pt" for pattern in ("", "tmp-", "scorch-")),
        *("matrix.pt.tmp", "matrix.pt~", ".matrix.pt.swp"),
    ]
    for guess in guesses:
        (folder / guess).symlink_to(victim)
    scorch.save(folder / "matrix.pt", matrix())
    assert victim.read_text() == "precious"
    assert sorted(os.listdir(folder)) == sorted([*guesses, "matrix.pt"])


def test_temporary_name_cannot_be_taken_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that exists is passed over, and what is written lies where only we may enter."""
    seen: list[Path] = []
    real = torch.save

    def spy(content: object, path: Path, *rest: object, **options: object) -> None:
        seen.append(Path(path))
        assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o700
        real(content, path, *rest, **options)

    monkeypatch.setattr(torch, "save", spy)
    names = iter(["taken", "free"])
    monkeypatch.setattr("tempfile._get_candidate_names", lambda: names)
    (tmp_path / ".scorch-taken").symlink_to(tmp_path)
    scorch.save(tmp_path / "x.pt", matrix())
    assert [path.parent.name for path in seen] == [".scorch-free"]


def test_link_of_our_own_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.pt").symlink_to(tmp_path / "real" / "x.pt")
    scorch.save(tmp_path / "link.pt", matrix())
    assert (tmp_path / "link.pt").is_symlink()
    assert os.listdir(tmp_path / "real") == ["x.pt"]


@needs_root
@pytest.mark.parametrize("name", NAMES)
def test_link_of_somebody_else_is_refused(name: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / name).symlink_to(victim)
    os.chown(tmp_path / name, STRANGER, -1, follow_symlinks=False)
    with pytest.raises(FileError, match="owned by another user"):
        write(tmp_path / name, matrix())
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", NAMES)
def test_missing_folder_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no such directory"):
        write(tmp_path / "absent" / name, matrix())


def test_many_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    draw = random.Random(1)
    names = [f"x{kind}" for kind in KINDS for _ in range(4)]
    draw.shuffle(names)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda job: scorch.save(tmp_path / job[1], matrix(float(job[0]))), enumerate(names)))
    assert sorted(os.listdir(tmp_path)) == sorted(set(names))
    for name in set(names):
        found = scorch.load(tmp_path / name).to_dense()
        assert float(found[1, 0]) == 3.0
        assert names[int(found[0, 1])] == name
