"""Texts for CUDA devices are compiled when they are needed, those that take long beside the program."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import scorch
from scorch._src.backends import cache
from scorch._src.backends.cuda.device import driver, nvrtc
from scorch._src.backends.cuda.device.kernel import (
    LAUNCHES,
    CudaKernel,
    Launches,
    kernel_of,
    read_text,
)
from scorch.errors import CompilationError, CompilerNotFoundError


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scorch._src.backends.cuda.device.kernel.PATIENCE", 0.0)
    monkeypatch.setattr(nvrtc, "is_there", lambda: True)
    monkeypatch.setattr(nvrtc, "read", lambda source, architecture, part: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


def test_who_may_not_wait_goes_on_while_a_thread_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, compiled = threading.Event(), []

    def compile_cuda(source: str, architecture: str, label: str, part: str, tell: object = None) -> bytes:
        assert may_end.wait(60)
        compiled.append((source, architecture))
        return b"code"

    monkeypatch.setattr(nvrtc, "compile_cuda", compile_cuda)
    kernel, record = CudaKernel("a text", "a label"), Launches()
    monkeypatch.setattr("scorch._src.backends.cuda.device.kernel.LAUNCHES", [record])
    assert not kernel.is_ready(may_wait=False) and not kernel.is_ready(may_wait=False)
    assert record.why_not == "NVRTC compiles it meanwhile" and not LAUNCHES
    may_end.set()
    assert kernel._compiling is not None
    kernel._compiling.join()
    assert kernel.is_ready(may_wait=False) and kernel.is_ready()
    assert compiled == [("a text", "sm_90")]


def test_who_need_not_wait_does_so_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scorch._src.backends.cuda.device.kernel.PATIENCE", 60.0)
    monkeypatch.setattr(nvrtc, "compile_cuda", lambda *_: b"code")
    kernel = CudaKernel("a text", "a label")
    assert kernel.is_ready(may_wait=False) and kernel._compiling is not None


def test_who_asks_first_waits_for_what_was_begun_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scorch._src.backends.cuda.device.kernel.PATIENCE", 60.0)
    has_begun = threading.Event()

    def compile_cuda(*_: str) -> bytes:
        assert has_begun.wait(60)
        return b"code"

    monkeypatch.setattr(nvrtc, "compile_cuda", compile_cuda)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    kernel = CudaKernel("a text", "a label")
    kernel.begin()
    join, joined = threading.Thread.join, []

    def recorded(thread: threading.Thread, timeout: float | None = None) -> None:
        joined.append(timeout)
        has_begun.set()
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", recorded)
    assert kernel.is_ready(may_wait=False) and joined[0] == 60


def test_nobody_waits_for_the_rest_of_what_is_half_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, has_one = threading.Event(), threading.Event()

    def compile_cuda(source: str, architecture: str, label: str, part: str, tell: object = None) -> bytes:
        if part == "one":
            return b"code"
        has_one.set()
        assert may_end.wait(60)
        return b"other code"

    monkeypatch.setattr(nvrtc, "compile_cuda", compile_cuda)
    monkeypatch.setattr("scorch._src.backends.cuda.device.kernel.MAX_COMPILERS", 1)  # "one", then "two"
    kernel = CudaKernel("a text", "a label", ["one", "two"])
    assert not kernel.is_ready(may_wait=False) and has_one.wait(60)
    threading.Timer(5, may_end.set).start()  # for a call that does wait, which would be wrong
    assert kernel._codes and not kernel.is_ready(may_wait=False) and not may_end.is_set()
    may_end.set()
    assert kernel._compiling is not None
    kernel._compiling.join()
    assert kernel.is_ready(may_wait=False)


def test_what_nvrtc_is_at_work_on_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    were_busy: list[bool] = []

    def compile_text(*_: str) -> tuple[bytes, str]:
        were_busy.append(nvrtc.is_busy())
        return b"code", ""

    monkeypatch.setattr(nvrtc, "compile_text", compile_text)
    monkeypatch.setattr(nvrtc, "_key", lambda *_: "0" * 64)
    with scorch.settings(cache_directory=tmp_path):
        assert nvrtc.compile_cuda("a text", "sm_90") == b"code" == nvrtc.compile_cuda("a text", "sm_90")
    assert were_busy == [True] and not nvrtc.is_busy()


def test_what_is_needed_next_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def compile_cuda(source: str, architecture: str, label: str, part: str, tell: object = None) -> bytes:
        compiled.append(threading.current_thread().name)
        return b"code"

    monkeypatch.setattr(nvrtc, "compile_cuda", compile_cuda)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    kernel = CudaKernel("a text", "a label")
    kernel.begin()
    kernel.begin()
    assert kernel.is_ready() and compiled == ["compile a label"]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    other = CudaKernel("a text", "a label")
    other.begin()
    assert other._compiling is None


def test_functions_that_a_call_needs_are_compiled_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    both, compiled = threading.Barrier(2), []

    def compile_cuda(source: str, architecture: str, label: str, part: str, tell: object = None) -> bytes:
        both.wait(60)
        compiled.append(part)
        return part.encode()

    monkeypatch.setattr(nvrtc, "compile_cuda", compile_cuda)
    monkeypatch.setattr(driver, "load", lambda code, name, device: (code, name))
    kernel = CudaKernel("a text", "a label", ["one", "two"])
    assert kernel.is_ready() and {*compiled} == {"one", "two"}
    assert kernel.function("one", 0) == (b"one", "one")
    compiled.clear()
    kernel.prepare(["one", "three", "four"], 0)
    assert kernel.function("four", 0) == (b"four", "four") and {*compiled} == {"three", "four"}


def test_a_call_waits_only_for_the_functions_that_it_launches_first(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, compiled = threading.Event(), []

    def compile_cuda(source: str, architecture: str, label: str, part: str, tell: object = None) -> bytes:
        assert part == "first" or may_end.wait(60)
        compiled.append(part)
        return part.encode()

    monkeypatch.setattr(nvrtc, "compile_cuda", compile_cuda)
    monkeypatch.setattr(driver, "load", lambda code, name, device: (code, name))
    kernel = CudaKernel("a text", "a label", ["last", "first"])
    assert not kernel.is_at_work and kernel.is_ready(needed=["first"]) and kernel.is_at_work
    assert kernel.function("first", 0) == (b"first", "first") and compiled == ["first"]
    threading.Timer(0.1, may_end.set).start()
    assert kernel.function("last", 0) == (b"last", "last") and compiled == ["first", "last"]
    assert kernel._compiling is not None
    kernel._compiling.join()
    assert kernel.is_ready(needed=["first"]) and not kernel.is_at_work


def test_nvrtc_is_at_work_when_the_caller_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, begun = threading.Event(), []

    def compile_text(source: str, architecture: str, *options: str) -> tuple[bytes, str]:
        begun.append(options[-1])
        assert may_end.wait(60)
        return b"code", ""

    monkeypatch.setattr(nvrtc, "compile_text", compile_text)
    monkeypatch.setattr(cache, "read", lambda key: None)
    monkeypatch.setattr(nvrtc, "_key", lambda source, architecture, part: part)
    monkeypatch.setattr(cache, "store", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr("scorch._src.backends.cuda.device.kernel.HEAD_START", 60.0)
    kernel = CudaKernel("a text", "a label", ["one", "two"])
    kernel.begin()
    are_at_work = {"one", "two"}.issubset(nvrtc._at_work)
    may_end.set()
    assert are_at_work and kernel.is_ready() and sorted(begun) == ["-DPART_one", "-DPART_two"]


def test_who_waits_for_a_function_that_cannot_be_compiled_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_cuda(source: str, architecture: str, label: str, part: str, tell: object = None) -> bytes:
        raise CompilationError("NVRTC could not compile a kernel")

    monkeypatch.setattr(nvrtc, "compile_cuda", compile_cuda)
    kernel = CudaKernel("a text", "a label", ["last", "first"])
    with pytest.warns(UserWarning, match="NVRTC could not compile a kernel"):
        assert not kernel.is_ready(needed=["first"])


def test_code_can_be_used_before_it_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    monkeypatch.setattr(nvrtc, "compile_text", lambda *_: (b"code", ""))
    monkeypatch.setattr(nvrtc, "_key", lambda *_: "0" * 64)
    monkeypatch.setattr(cache, "store", lambda *_: happened.append("stored"))
    with scorch.settings(cache_directory=tmp_path):
        nvrtc.compile_cuda("a text", "sm_90", tell=lambda code: happened.append(code.decode()))
    assert happened == ["code", "stored"]


def test_a_text_has_one_kernel_for_the_same_functions() -> None:
    one = kernel_of("a text that is shared", "a label", ["one"])
    assert one is kernel_of("a text that is shared", "another label", ("one",))
    assert one is not kernel_of("a text that is shared", "a label", ["one", "two"])


@pytest.mark.parametrize(
    "path", sorted(Path(nvrtc.__file__).parents[1].glob("c/*.cu")), ids=lambda path: path.name
)
def test_every_kernel_of_a_file_is_a_part(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    names = re.findall(r"^KERNEL void .*?(\w+)\(const struct", text, re.MULTILINE)
    assert len(names) == text.count("KERNEL void")
    parts = re.findall(
        r"^#if !defined\(PART\) \|\| defined\(PART_(\w+)\)\nKERNEL void .*?(\w+)\(const struct",
        read_text(path.name),
        re.MULTILINE,
    )
    assert parts == [(name, name) for name in names]
    without = re.sub(r"#if !defined\(PART\).*?\n}\n#endif", "", read_text(path.name), flags=re.DOTALL)
    assert "KERNEL" not in without


def test_code_on_disk_is_ready_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def read_once(source: str, architecture: str, part: str) -> bytes | None:
        read.append(part)
        return b"code" if architecture == "sm_90" else None

    monkeypatch.setattr(nvrtc, "read", read_once)
    monkeypatch.setattr(nvrtc, "compile_cuda", lambda *_: pytest.fail("nothing is left to compile"))
    monkeypatch.setattr(driver, "load", lambda code, name, device: (code, name))
    for may_wait in (True, False):
        kernel = CudaKernel("a text", "a label", ["one", "two"])
        assert kernel.is_ready(may_wait=may_wait) and kernel._compiling is None
        assert kernel.function("two", 0) == (b"code", "two")
    assert read == ["one", "two"] * 2


def test_a_text_that_a_thread_could_not_compile_warns_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()

    def refuse(*_: object) -> bytes:
        assert may_end.wait(60)
        raise CompilationError("NVRTC could not compile a kernel")

    monkeypatch.setattr(nvrtc, "compile_cuda", refuse)
    kernel = CudaKernel("a text", "a label")
    assert not kernel.is_ready(may_wait=False)
    may_end.set()
    assert kernel._compiling is not None
    kernel._compiling.join()
    with pytest.warns(UserWarning, match="NVRTC could not compile a kernel"):
        assert not kernel.is_ready(may_wait=False)
    assert not kernel.is_ready(may_wait=False)  # without another warning


def test_a_library_that_cannot_be_loaded_warns_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise CompilerNotFoundError("Scorch compiles CUDA kernels with NVRTC")

    monkeypatch.setattr(nvrtc, "compile_cuda", refuse)
    with pytest.warns(UserWarning, match="falls back to PyTorch operators"):
        assert not CudaKernel("a text", "a label").is_ready()


def test_code_on_disk_is_read_without_nvrtc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("NVRTC is loaded")

    monkeypatch.undo()
    text = f"a text of {tmp_path}"
    (tmp_path / "libnvrtc.so.13").write_bytes(b"a library")
    (tmp_path / "libnvrtc-builtins.so.13").write_bytes(b"")
    monkeypatch.setattr(nvrtc, "_folders", lambda: iter([tmp_path]))
    monkeypatch.setattr(nvrtc, "nvrtc", refuse)
    nvrtc.identity.cache_clear()
    nvrtc.why_missing.cache_clear()
    try:
        assert nvrtc.is_there() and nvrtc.identity() == "libnvrtc.so.13, 9 bytes"
        assert nvrtc.read(text, "sm_90") is None
        cache.store(nvrtc._key(text, "sm_90", ""), b"code", text)
        assert nvrtc.read(text, "sm_90") == b"code" == nvrtc.compile_cuda(text, "sm_90")
    finally:
        nvrtc.identity.cache_clear()
        nvrtc.why_missing.cache_clear()


def test_the_library_of_torchs_version_is_found_in_few_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("other", "own", "last")]
    for folder, version in zip(folders, ("12", "13", "13"), strict=True):
        folder.mkdir()
        (folder / f"libnvrtc.so.{version}").touch()
        (folder / f"libnvrtc-builtins.so.{version}").touch()
    read: list[Path] = []

    def each() -> Iterator[Path]:
        for folder in folders:
            read.append(folder)
            yield folder

    monkeypatch.setattr(nvrtc, "_folders", each)
    monkeypatch.setattr(nvrtc, "_major", lambda: "13")
    assert next(nvrtc._files()) == folders[1] / "libnvrtc.so.13" and read == folders[:2]
    assert [path.parent.name for path in nvrtc._files()] == ["own", "last", "other"]
