"""Calls that repeat go straight to a launch, and take the long way where something is unusual."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import grid_emulator
import scorch
from scorch._src.backends.cuda.device import driver
from scorch._src.backends.cuda.device.kernel import LAUNCHES, Launch, Launches
from scorch._src.loops.grid import FUNCTIONS


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the blocks of launches that take the short way."""
    blocks: list[int] = []
    make = grid_emulator.EmulatedExecutable.launcher

    def counted(self: Any, grids: Sequence[Launch], slots: int, device: int) -> Callable[..., None]:
        launch = make(self, grids, slots, device)

        def run(*given: int) -> None:
            assert len(given) == slots
            blocks.append(sum(grid.blocks for grid in grids))
            launch(*given)

        return run

    monkeypatch.setattr(grid_emulator.EmulatedExecutable, "launcher", counted)
    return blocks


def matrix(rows: int = 20, columns: int = 30) -> torch.Tensor:
    return torch.randint(1, 5, (rows, columns)) * (torch.rand(rows, columns) < 0.2).float()


def test_calls_that_repeat_take_the_short_way(quick: list[int]) -> None:
    a, X = matrix(), torch.randint(-3, 4, (31, 32)).float()
    with scorch.settings(backend="emulated"):
        A = scorch.from_torch(a, format="csr")
        quick.clear()
        for number in range(3):
            x = X[number % 2 : 30 + number % 2]
            torch.testing.assert_close(A @ x, a @ x)
            assert len(quick) == number


def test_tensors_of_zeros_without_memory() -> None:
    a, x = matrix(), torch.ones(30, 32)
    with scorch.settings(backend="emulated"):
        A = scorch.from_torch(a, format="csr")
        for _ in range(3):
            torch.testing.assert_close(A @ x, a @ x)
            assert torch.equal(A @ torch._efficientzerotensor(30, 32), torch.zeros(20, 32))


def test_unusual_calls_take_the_long_way(quick: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scorch._src.backends.cuda.routines.rows.MIN_PART", 4)
    short, long = matrix(20, 100), matrix(20, 100)
    long[3] = 1
    flat = torch.randint(-3, 4, (100 * 32 + 1,)).float()
    x, elsewhere = flat[:-1].view(100, 32), flat[1:].view(100, 32)  # where runs of four cannot be loaded
    with scorch.settings(backend="emulated"):
        A, B = (scorch.from_torch(dense, format="csr") for dense in (short, long))
        for _ in range(2):
            torch.testing.assert_close(A @ x, short @ x)
            torch.testing.assert_close(B @ x, long @ x)
        quick.clear()
        torch.testing.assert_close(A @ elsewhere, short @ elsewhere)
        torch.testing.assert_close(B @ elsewhere, long @ elsewhere)
        record = Launches()
        LAUNCHES.append(record)
        torch.testing.assert_close(A @ x, short @ x)
        LAUNCHES.remove(record)
        assert not quick and record.launched
        torch.testing.assert_close(A @ x, short @ x)
        assert len(quick) == 1


def test_rows_that_are_cut_take_the_short_way(quick: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scorch._src.backends.cuda.routines.rows.MIN_PART", 4)
    long, other = matrix(20, 100), matrix(20, 100)
    long[3], other[7] = 1, 2
    X = torch.randint(-3, 4, (2, 100, 32)).float()
    with scorch.settings(backend="emulated"):
        patterns = [scorch.from_torch(dense, format="csr") for dense in (long, other)]
        patterns[0] @ X[0]
        quick.clear()
        for number in range(4):  # patterns take turns, of which each has its own parts
            dense, x = (long, other)[number % 2], X[number // 2]
            LAUNCHES.append(record := Launches())
            wanted = patterns[number % 2] @ x
            LAUNCHES.remove(record)
            assert [launch.name for _, launch, _ in record.launched] == list(FUNCTIONS[1:])
            assert torch.equal(patterns[number % 2] @ x, wanted)
            torch.testing.assert_close(wanted, dense @ x)
            assert len(quick) == number + 1


def test_a_launcher_passes_slots_blocks_and_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, function = ctypes.create_string_buffer(8 * driver.MAX_SLOTS), ctypes.c_void_p(5)
    calls: list[Any] = []

    def run(shape: Any, *others: Any) -> None:
        calls.append((bytes(shape._obj), *others))

    monkeypatch.setattr(driver, "_arguments", lambda: SimpleNamespace(both=(memory, "pointers")))
    monkeypatch.setattr(driver, "driver", lambda: SimpleNamespace(cuLaunchKernelEx=run))
    monkeypatch.setattr(driver, "cuda_stream_of", lambda device: 70 + device)
    other = ctypes.c_void_p(6)
    driver.launcher([(function, 9), (other, 2)], 3, 1)(11, -12, 13)
    assert list((ctypes.c_longlong * 3).from_buffer(memory)) == [11, -12, 13]
    assert len(calls) == 2
    for (shape, *others), (launched, blocks) in zip(calls, [(function, 9), (other, 2)], strict=True):
        assert others == [launched, "pointers", None]
        # As CUlaunchConfig is: blocks and threads in three dimensions, shared memory, stream, no attributes.
        assert struct.unpack("=7I4xQQI4x", shape) == (blocks, 1, 1, driver.THREADS, 1, 1, 0, 71, 0, 0)
