from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path

import platformdirs
import pytest

from scorch._src.backends import cache
from scorch.errors import ScorchWarning
from scorch.settings import settings

pytestmark = pytest.mark.usefixtures("kernels")

SOURCE = "long long f(long long *a) { return 1; }"


def key_of(name: str) -> str:
    return cache.make_key(name)


def blocked(tmp_path: Path) -> Path:
    """A directory that nobody can make, not even root."""
    (tmp_path / "file").write_text("in the way")
    return tmp_path / "file" / "kernels"


def test_setting_precedes_environment_precedes_users_cache(
    tmp_path: Path, kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache.directory() == kernels
    with settings(cache_directory=tmp_path / "chosen"):
        assert cache.directory() == tmp_path / "chosen"
    monkeypatch.delenv("SCORCH_CACHE_DIR")
    assert cache.directory() == Path(platformdirs.user_cache_dir("scorch"))


def test_key_depends_on_every_part_and_its_place() -> None:
    parts = [("ab", "c"), ("a", "bc"), ("abc",), ("c", "ab"), ("ab", "c", "")]
    assert len({cache.make_key(*part) for part in parts}) == len(parts)
    assert cache.make_key("ab", "c") == cache.make_key("ab", "c")
    assert cache.make_key("/compilers/\udcff") != cache.make_key("/compilers/\udcfe")  # no UTF-8


def test_stored_library_is_found_with_its_source() -> None:
    key = key_of("a")
    assert cache.find(key) is None
    path = cache.store(key, b"library", SOURCE)
    assert cache.find(key) == path
    assert path.read_bytes() == b"library"
    assert path.with_suffix(".c").read_text() == SOURCE


def test_made_directory_is_private(kernels: Path) -> None:
    cache.store(key_of("a"), b"library", SOURCE)
    assert stat.S_IMODE(kernels.stat().st_mode) == 0o700


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
@pytest.mark.parametrize(("folder", "file"), [(0o700, 0o600), (0o755, 0o644), (0o750, 0o640)])
def test_whoever_may_list_the_directory_may_read_its_files(kernels: Path, folder: int, file: int) -> None:
    """So that a directory that root filled serves everybody on the machine."""
    kernels.mkdir()
    kernels.chmod(folder)
    path = cache.store(key_of("a"), b"library", SOURCE)
    assert {stat.S_IMODE(path.with_suffix(end).stat().st_mode) for end in (".c", ".so", ".json")} == {file}


def test_nothing_temporary_stays(kernels: Path) -> None:
    key = key_of("a")
    cache.store(key, b"library", SOURCE)
    assert sorted(os.listdir(kernels)) == [f"{key}.c", f"{key}.json", f"{key}.so"]


@pytest.mark.parametrize("damage", [b"", b"lib", b"librarz", b"library and more"])
def test_damaged_library_is_not_found(damage: bytes) -> None:
    key = key_of("a")
    cache.store(key, b"library", SOURCE).write_bytes(damage)
    assert cache.find(key) is None
    cache.store(key, b"library", SOURCE)
    assert cache.find(key) is not None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"sha256": 1}'])
def test_damaged_manifest_is_no_entry(damage: bytes) -> None:
    key = key_of("a")
    path = cache.store(key, b"library", SOURCE)
    path.with_suffix(".json").write_bytes(damage)
    assert cache.find(key) is None


def test_library_without_manifest_is_no_entry() -> None:
    key = key_of("a")
    cache.store(key, b"library", SOURCE).with_suffix(".json").unlink()
    assert cache.find(key) is None
    assert cache.statistics().entries == 0


def test_entry_renamed_to_another_key_is_foreign() -> None:
    key, other = key_of("a"), key_of("b")
    path = cache.store(key, b"library", SOURCE)
    for suffix in (".so", ".json"):
        path.with_suffix(suffix).rename(path.with_name(other + suffix))
    assert cache.find(other) is None


def test_directory_in_place_of_a_library_is_survived(kernels: Path) -> None:
    key = key_of("a")
    (kernels / f"{key}.so").mkdir(parents=True)
    assert cache.find(key) is None
    with pytest.warns(ScorchWarning):
        path = cache.store(key, b"library", SOURCE)
    assert cache.find(key) == path


def test_unusable_directory_warns_once_and_work_goes_on(tmp_path: Path) -> None:
    place = blocked(tmp_path)
    with settings(cache_directory=place):
        assert cache.find(key_of("a")) is None
        with pytest.warns(ScorchWarning, match="SCORCH_CACHE_DIR") as caught:
            path = cache.store(key_of("a"), b"library", SOURCE)
        assert len(caught) == 1
        assert str(place) in str(caught[0].message)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cache.store(key_of("b"), b"library", SOURCE)
            cache.store_text(key_of("c"), ".c", SOURCE)
        assert cache.find(key_of("a")) == path
        assert cache.statistics() == (place, 0, 0)
        assert cache.clear() == 0


def test_files_of_others_are_left_alone(kernels: Path) -> None:
    cache.store(key_of("a"), b"library", SOURCE)
    (kernels / "notes.c").write_text("mine")
    with settings(cache_bytes=1):
        cache.store(key_of("b"), b"library", SOURCE)
    cache.clear()
    assert os.listdir(kernels) == ["notes.c"]


def test_statistics_count_entries_and_bytes(kernels: Path) -> None:
    assert cache.statistics() == (kernels, 0, 0)
    cache.store(key_of("a"), b"x" * 1000, SOURCE)
    cache.store(key_of("b"), b"x" * 1000, SOURCE)
    where, entries, size = cache.statistics()
    assert (where, entries) == (kernels, 2)
    assert size == sum(path.stat().st_size for path in kernels.iterdir())


def test_clear_removes_everything_and_counts(kernels: Path) -> None:
    cache.store(key_of("a"), b"library", SOURCE)
    cache.store(key_of("b"), b"library", SOURCE)
    cache.store_text(key_of("failed"), ".c", SOURCE)
    (kernels / ".writing-half").write_bytes(b"lib")
    (kernels / "zig").mkdir()
    assert cache.clear() == 2
    assert os.listdir(kernels) == []
    assert cache.clear() == 0


def test_size_stays_bounded_and_the_least_used_go_first(kernels: Path) -> None:
    with settings(cache_bytes=10_000):
        names = [key_of(f"old {i}") for i in range(8)]
        for age, name in enumerate(names):
            path = cache.store(name, b"x" * 1000, SOURCE)
            for suffix in (".so", ".c", ".json"):
                os.utime(path.with_suffix(suffix), (age, age))
        cache.find(names[0])  # using an entry makes it young again
        for i in range(20):
            cache.store(key_of(f"new {i}"), b"x" * 1000, SOURCE)
            assert cache.statistics().bytes <= 10_000
            if i == 2:
                assert cache.find(names[0]) is not None
                assert cache.find(names[1]) is None
        assert cache.find(key_of("new 19")) is not None


def test_kernel_larger_than_the_bound_still_works() -> None:
    with settings(cache_bytes=10):
        cache.store(key_of("a"), b"x" * 1000, SOURCE)
        path = cache.store(key_of("b"), b"x" * 1000, SOURCE)
        assert cache.find(key_of("b")) == path
        assert cache.find(key_of("a")) is None


def test_pruning_removes_what_a_killed_process_left(kernels: Path) -> None:
    kernels.mkdir()
    old, fresh = kernels / ".writing-old", kernels / ".writing-fresh"
    old.write_bytes(b"half")
    fresh.write_bytes(b"half")
    os.utime(old, (0, 0))
    with settings(cache_bytes=10):
        cache.store(key_of("a"), b"library", SOURCE)
    assert not old.exists()
    assert fresh.exists()


def test_directory_is_not_read_at_every_write(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    scan = cache._scan
    monkeypatch.setattr(cache, "_scan", lambda place: reads.append(place) or scan(place))
    for i in range(10):
        cache.store(key_of(str(i)), b"library", SOURCE)
    assert len(reads) == 1
