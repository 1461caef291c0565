"""Code is loaded only from where nobody else can have put it."""

from __future__ import annotations

import ctypes
import os
import random
import stat
import tempfile
import warnings
from pathlib import Path

import pytest

from scorch._src.backends import cache, private_files
from scorch._src.backends.cpu import jit, toolchain
from scorch._src.backends.private_files import (
    NotPrivateError,
    make_private,
    read_private,
    resolve_private,
)
from scorch.errors import ScorchWarning
from scorch.settings import settings

pytestmark = pytest.mark.usefixtures("kernels")

STRANGER = 54321
needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files to somebody else"
)
WRITABLE = [0o777, 0o707, 0o770, 0o722, 0o757, 0o775]


def constant(value: int) -> str:
    return f"long long kernel(long long *args) {{ return {value}; }}\n"


def result_of(library: jit.Library) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_longlong, ctypes.c_void_p)(library.address("kernel"))(None))


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_warned", set())


def folder(path: Path, mode: int = 0o700, owner: int | None = None) -> Path:
    path.mkdir(parents=True)
    path.chmod(mode)
    if owner is not None:
        os.chown(path, owner, -1)
    return path


def is_refused(place: Path) -> bool:
    """Whether a kernel asked for with this directory comes from a private one, with one warning."""
    jit.forget()
    before = sorted(place.glob("*"))
    with settings(cache_directory=place), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        library, another = jit.load(constant(7)), jit.load(constant(8))
        used = cache.directory()
    assert (result_of(library), result_of(another)) == (7, 8)
    assert library.path.parent == another.path.parent == used
    assert stat.S_IMODE(used.stat().st_mode) == 0o700
    about = [str(w.message) for w in caught if issubclass(w.category, ScorchWarning)]
    if used == place.resolve():
        assert about == []
        return False
    assert len(about) == 1
    assert str(place) in about[0] and "SCORCH_CACHE_DIR" in about[0]
    assert sorted(place.glob("*")) == before
    return True


@pytest.mark.parametrize("mode", WRITABLE)
def test_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    assert is_refused(folder(tmp_path / "open", mode))


@pytest.mark.parametrize("mode", [*WRITABLE, 0o1777])
def test_only_a_sticky_bit_makes_an_open_parent_safe(tmp_path: Path, mode: int) -> None:
    above = folder(tmp_path / "above", mode)
    assert is_refused(folder(above / "kernels")) == (mode != 0o1777)


def test_sticky_directory_itself_is_refused(tmp_path: Path) -> None:
    assert is_refused(folder(tmp_path / "sticky", 0o1777))


def test_directory_that_only_others_can_read_is_used(tmp_path: Path) -> None:
    place = folder(tmp_path / "readable", 0o755)
    with settings(cache_directory=place):
        assert jit.load(constant(7)).path.parent == place


def test_missing_directories_are_made_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = make_private(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(place.stat().st_mode) for place in (made, made.parent, made.parent.parent)} == {
        0o700
    }


@needs_root
def test_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    assert is_refused(folder(tmp_path / "theirs", 0o700, STRANGER))


@needs_root
def test_directory_below_one_of_somebody_else_is_refused(tmp_path: Path) -> None:
    above = folder(tmp_path / "theirs", 0o755, STRANGER)
    assert is_refused(folder(above / "ours"))


@needs_root
def test_links_are_trusted_as_far_as_their_owners(tmp_path: Path) -> None:
    place, shared = folder(tmp_path / "ours"), folder(tmp_path / "shared", 0o1777)
    link = shared / "link"
    link.symlink_to(place)
    assert not is_refused(link)
    os.chown(link, STRANGER, -1, follow_symlinks=False)
    assert is_refused(link)


def test_link_into_an_open_directory_is_refused(tmp_path: Path) -> None:
    place = folder(tmp_path / "open", 0o777)
    (tmp_path / "link").symlink_to(place)
    assert is_refused(tmp_path / "link")


def test_circle_of_links_is_refused_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(NotPrivateError):
        resolve_private(tmp_path / "a" / "kernels")


@pytest.mark.parametrize("seed", range(40))
def test_walk_agrees_with_the_rule_on_drawn_trees(seed: int, tmp_path: Path) -> None:
    """A chain of folders and links is private exactly if nobody else can write to or replace any of them."""
    draw = random.Random(seed)
    at, expected = tmp_path, True
    depth = draw.randrange(1, 5)
    for level in range(depth):
        is_last = level == depth - 1
        mode = draw.choice([0o700, 0o755, 0o711, 0o700, 0o777, 0o1777, 0o775])
        real = folder(at / f"folder{level}", mode)
        is_open = bool(mode & 0o022)
        expected &= not is_open or (bool(mode & 0o1000) and not is_last)
        if draw.random() < 0.4:
            link = at / f"link{level}"
            link.symlink_to(draw.choice([real, Path(real.name), Path("..") / at.name / real.name]))
            at = link
        else:
            at = real
    if expected:
        assert resolve_private(at) == at.resolve()
    else:
        with pytest.raises(NotPrivateError):
            resolve_private(at)


# files -------------------------------------------------------------------------------------------------


def planted(kernels: Path, source: str) -> Path:
    """A library where the one of ``source`` is looked for, that computes 99 instead."""
    library = jit.load(constant(99)).path.read_bytes()
    key = cache.make_key(source, *toolchain.find_toolchain().identity)
    cache._write_entry(kernels, key, library, source)  # with a manifest that fits
    return kernels / f"{key}.so"


def test_planted_library_would_run_if_it_were_ours(kernels: Path) -> None:
    """What the tests below rely on."""
    planted(kernels, constant(7))
    assert result_of(jit.load(constant(7))) == 99


@pytest.mark.parametrize("suffix", [".so", ".json"])
@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_file_that_others_can_write_is_built_again(kernels: Path, suffix: str, mode: int) -> None:
    planted(kernels, constant(7)).with_suffix(suffix).chmod(mode)
    assert result_of(jit.load(constant(7))) == 7


@needs_root
@pytest.mark.parametrize("suffix", [".so", ".json"])
def test_file_of_somebody_else_is_built_again(kernels: Path, suffix: str) -> None:
    os.chown(planted(kernels, constant(7)).with_suffix(suffix), STRANGER, -1)
    assert result_of(jit.load(constant(7))) == 7


@pytest.mark.parametrize("suffix", [".so", ".json"])
def test_link_in_place_of_a_file_is_not_followed(kernels: Path, tmp_path: Path, suffix: str) -> None:
    path = planted(kernels, constant(7)).with_suffix(suffix)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert result_of(jit.load(constant(7))) == 7
    assert not path.is_symlink()


@pytest.mark.parametrize("kind", ["folder", "fifo", "socket"])
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        os.mknod(path, stat.S_IFSOCK | 0o600)
    with pytest.raises(OSError):
        read_private(path)


@needs_root
def test_note_of_somebody_else_is_not_read(kernels: Path) -> None:
    key = cache.make_key("a")
    cache.write_note(key, b"content")
    assert cache.read_note(key) == b"content"
    os.chown(kernels / f"{key}.note", STRANGER, -1)
    assert cache.read_note(key) is None


# temporary folders ---------------------------------------------------------------------------------------


def test_temporary_files_avoid_an_open_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_place, own = folder(tmp_path / "open", 0o777), folder(tmp_path / "own")
    monkeypatch.setattr(tempfile, "tempdir", str(open_place))
    monkeypatch.setattr(private_files.platformdirs, "user_cache_dir", lambda _: str(own / "scorch"))
    with private_files.temporary_folder() as place:
        assert Path(place).parent == own / "scorch"
    assert list(own.glob("scorch/*")) == []
    own.chmod(0o777)
    with pytest.raises(NotPrivateError, match="no directory for private files"):
        private_files.make_temporary()


def test_group_of_its_own_is_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = folder(tmp_path / "kernels", 0o770)
    with pytest.raises(NotPrivateError):
        resolve_private(place)
    monkeypatch.setattr(private_files, "_is_own_group", lambda group: group == place.stat().st_gid)
    assert resolve_private(place) == place
    place.chmod(0o772)
    with pytest.raises(NotPrivateError):
        resolve_private(place)


def test_temporary_folders_need_no_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed = folder(tmp_path / "removed")
    monkeypatch.chdir(removed)
    removed.rmdir()
    with private_files.temporary_folder() as place:
        assert Path(place).is_dir()
    assert private_files.resolve_private(folder(tmp_path / "kept")) == tmp_path / "kept"
