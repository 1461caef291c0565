"""Kernels that depend on dtypes alone are compiled from the first sparse tensor on a device on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import scorch
from grid_emulator import EmulatedBackend, noting
from scorch._src.backends import base, cache
from scorch._src.backends.cuda import backend as cuda
from scorch._src.backends.cuda.backend import CudaBackend
from scorch._src.backends.cuda.device import kernel as kernels
from scorch._src.backends.cuda.device import nvrtc
from scorch._src.backends.cuda.device.kernel import Ahead, CudaKernel, Text
from scorch.errors import CompilationError

TEXTS = [Text(lambda: "a text", "a label", ["one", "two"]), Text(lambda: "another", "a label", ["three"])]

Compiled = list[tuple[str, str]]


@pytest.fixture(autouse=True)
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A device, an empty cache, and a host with many cores."""
    monkeypatch.setattr(nvrtc, "is_there", lambda: True)
    monkeypatch.setattr(nvrtc, "identity", lambda: "an NVRTC")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(kernels, "cores_of_host", lambda: 16)
    monkeypatch.setattr(kernels, "DELAY", 0.0)
    with scorch.settings(cache_directory=tmp_path):
        yield


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """What NVRTC has compiled: texts and parts."""
    found: Compiled = []

    def compile_text(source: str, architecture: str, *options: str) -> tuple[bytes, str]:
        found.append((source, options[-1].removeprefix("-DPART_")))
        return b"code", ""

    monkeypatch.setattr(nvrtc, "compile_text", compile_text)
    return found


def mark_of(architecture: str) -> str:
    return cache.make_key("a mark", architecture)


ALL = [("a text", "one"), ("a text", "two"), ("another", "three")]


@pytest.mark.parametrize("cores", [1, 8, 64])
def test_all_parts_are_compiled_once(cores: int, compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "cores_of_host", lambda: cores)
    Ahead(TEXTS, mark_of).thread.join()
    assert sorted(compiled) == ALL
    assert nvrtc.read("another", "sm_90", "three") == b"code" and not nvrtc.is_busy()


def test_another_process_does_not_even_print_texts(compiled: Compiled) -> None:
    Ahead(TEXTS, mark_of).thread.join()
    printed: list[str] = []
    Ahead([Text(lambda: printed.append("again") or "a text", "a label", ["one"])], mark_of).thread.join()
    assert len(compiled) == 3 and not printed
    cache.clear()
    Ahead(TEXTS, mark_of).thread.join()
    assert len(compiled) == 6


def test_what_cannot_be_compiled_is_left_to_the_call_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def compile_cuda(source: str, architecture: str, label: str, part: str, is_ahead: bool) -> bytes:
        tried.append(part)
        if part == "one":
            raise CompilationError("NVRTC could not compile a kernel")
        return b"code"

    monkeypatch.setattr(nvrtc, "compile_cuda", compile_cuda)
    for _ in range(2):  # without a note, the next process tries again
        Ahead(TEXTS, mark_of).thread.join()
    assert sorted(tried) == sorted(["one", "two", "three"] * 2)


def test_a_program_that_ends_waits_for_no_more_parts(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Thread(target=lambda: None)
    monkeypatch.setattr(threading, "main_thread", lambda: over)
    Ahead(TEXTS, mark_of).thread.join()
    assert not compiled and cache.read_note(mark_of("sm_90")) is None


@pytest.mark.parametrize(("cores", "looks"), [(2, 3), (8, 0)])
def test_few_cores_are_left_to_those_who_wait(
    cores: int, looks: int, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only thread of few cores looks whether somebody waits before each part, and where none is left."""
    answers = iter([True, True, *[False] * 4])
    monkeypatch.setattr(kernels, "cores_of_host", lambda: cores)
    monkeypatch.setattr(kernels, "MAX_AHEAD", 1)
    monkeypatch.setattr(nvrtc, "is_busy", lambda: next(answers))
    Ahead(TEXTS, mark_of).thread.join()
    assert sorted(compiled) == ALL and len([*answers]) == (0 if cores == 2 else 6)


def test_a_call_waits_for_the_thread_that_compiles_its_kernel_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_end, has_begun, count = threading.Event(), threading.Event(), []

    def compile_text(*_: str) -> tuple[bytes, str]:
        count.append(nvrtc.is_busy())
        has_begun.set()
        assert may_end.wait(60)
        return b"code", ""

    monkeypatch.setattr(nvrtc, "compile_text", compile_text)
    ahead = Ahead([Text(lambda: "a text", "a label", ["one"])], mark_of)
    assert has_begun.wait(60) and count == [False]  # nobody waits
    kernel = CudaKernel("a text", "a label", ["one"])
    kernel.begin()
    threading.Timer(0.2, may_end.set).start()
    assert kernel.is_ready() and kernel._code(0, "one") == b"code" and len(count) == 1
    ahead.thread.join()


# which kernels, and when ---------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize("dtype", cuda.AHEAD)
def test_kernels_that_are_compiled_ahead_are_those_of_calls(dtype: torch.dtype) -> None:
    a = (torch.rand(200, 200) < 0.05).to(dtype)
    S = scorch.from_torch(a, format="csr")
    places, values = torch.randint(200, (2, 20_000)), torch.ones(20_000, dtype=dtype)
    calls: list[Callable[[], Any]] = [
        lambda: scorch.einsum("ij,jk->ik", S, S, format="csr"),
        lambda: S.T @ torch.ones(200, dtype=dtype),
        lambda: S + S.T.to_format("csr"),
        lambda: scorch.sparse_coo_tensor(places, values, (200, 200)),
    ]
    with noting(lambda source, name: (source, name)) as noted, scorch.settings(backend="emulated"):
        for call in calls:
            call()
    texts = CudaBackend().usual_texts(dtype, torch.int32)
    ahead = {(text.print_source(), part) for text in texts for part in text.parts}
    needed = {name for source, name in noted if (source, name) in ahead}
    assert {"scorch_add_many", "scorch_count_few", "scorch_sort", "scorch_place_entries"} <= needed
    assert "scorch_rows" in needed or dtype.itemsize < 4  # values of two bytes are not combined


class Expecting(EmulatedBackend):
    def __init__(self) -> None:
        self.expected: list[tuple[str, torch.dtype, torch.dtype]] = []

    def expect(self, device: torch.device, values: torch.dtype, index: torch.dtype) -> bool:
        self.expected.append((device.type, values, index))
        return values != torch.float16


def test_the_first_sparse_tensor_on_a_device_begins_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meta tensors take the place of those on a GPU."""
    backend = Expecting()
    monkeypatch.setattr(base, "_EXPECTED", set())
    monkeypatch.setitem(base._BACKENDS, "meta", backend)
    monkeypatch.setitem(base._DEVICES, "meta", None)
    S = scorch.from_torch(torch.eye(4), format="csr")
    assert not backend.expected
    for _ in range(2):
        for dtype in (torch.float32, torch.float16):
            S.to(dtype).to("meta")
    usual, half = (("meta", dtype, torch.int32) for dtype in (torch.float32, torch.float16))
    assert backend.expected == [usual, half, half]  # it was not ready for half precision


def test_nothing_is_compiled_ahead_without_a_device_or_where_it_is_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[list[Text]] = []
    monkeypatch.setattr(cuda, "Ahead", lambda texts, mark: begun.append(texts))
    monkeypatch.setattr(cuda, "in_context", lambda device: torch.no_grad())
    expect, place = CudaBackend().expect, torch.device("meta")
    with scorch.settings(disable="ahead"):
        assert not expect(place, torch.float32, torch.int32)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert not expect(place, torch.float32, torch.int32) and not begun
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert expect(place, torch.bool, torch.int32) and not begun
    assert expect(place, torch.float32, torch.int32) and len(begun) == 1


def test_the_note_depends_on_all_that_code_does(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = torch.float32, torch.int32, "sm_90"
    found = {
        cuda._mark_of(*usual),
        cuda._mark_of(torch.float64, *usual[1:]),
        cuda._mark_of(*usual[:2], "sm_80"),
    }
    monkeypatch.setattr(nvrtc, "identity", lambda: "another NVRTC")
    found.add(cuda._mark_of(*usual))
    monkeypatch.setattr(cuda.sources, "version", lambda: "other sources")
    assert len({*found, cuda._mark_of(*usual)}) == 5
