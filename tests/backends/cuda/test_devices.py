"""Several CUDA devices and streams, where there is none: a driver that is made up."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import scorch
from fork_server import CAN_FORK, run_python
from scorch._src.backends import base
from scorch._src.backends.cuda.device import driver, nvrtc, streams
from scorch._src.backends.cuda.device.driver import in_context
from scorch._src.backends.cuda.device.kernel import CudaKernel, Launch
from scorch._src.backends.cuda.executables import direct
from scorch._src.backends.cuda.executables.executable import CudaExecutable
from scorch._src.devices import META
from scorch._src.loops.grid import FUNCTIONS
from scorch._src.tensor import call_errors, metadata
from scorch._src.tensor.create import check
from scorch.errors import DeviceError, KernelError, OperandError

DEVICES = [torch.device("cuda", number) for number in range(2)]


class TwoDevices:
    """A driver of two devices with architectures of their own, that notes what happens on the current one."""

    def __init__(self) -> None:
        self.current = 0
        self.contexts = threading.local()  # whether a thread has one
        self.contexts.current = True
        self.retained: list[int] = []
        self.loaded: list[tuple[int, bytes]] = []
        self.launched: list[tuple[int, int]] = []  # device and stream
        self.streams = {0: 70, 1: 71}

    @contextlib.contextmanager
    def using(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device.index
        yield
        self.current = before

    def cuDeviceGet(self, number: Any, device: int) -> int:
        number._obj.value = device
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, number: Any) -> int:
        self.retained.append(number.value)
        context._obj.value = 1 + number.value
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        self.contexts.current = context.value == 1 + self.current
        return 0

    def cuFuncSetAttribute(self, *given: Any) -> int:
        return 0 if getattr(self.contexts, "current", False) else driver.NO_CONTEXT

    def cuModuleLoadData(self, module: Any, code: bytes) -> int:
        if not getattr(self.contexts, "current", False):
            return driver.NO_CONTEXT
        self.loaded.append((self.current, code))
        module._obj.value = 1 + self.current
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        function._obj.value = module.value
        return 0

    def cuLaunchKernel(self, function: Any, *given: Any) -> int:
        return self._launch(function, given[-3].value or 0)

    def cuLaunchKernelEx(self, shape: Any, function: Any, *given: Any) -> int:
        return self._launch(function, shape._obj.stream or 0)

    def _launch(self, function: Any, stream: int) -> int:
        if not getattr(self.contexts, "current", False):
            return driver.NO_CONTEXT
        self.launched.append((self.current, stream))
        return 0 if function.value == 1 + self.current else 400  # CUDA_ERROR_INVALID_HANDLE

    def cuGetErrorString(self, status: int, text: Any) -> int:
        text._obj.value = b"invalid resource handle"
        return 0


def compiled(source: str, architecture: str, label: str, part: str, tell: object) -> bytes:
    return f"{architecture}, part {FUNCTIONS.index(part)}".encode()


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoDevices]:
    made_up = TwoDevices()
    driver._arguments.cache_clear()
    driver._modules.clear()
    driver._primary_context.cache_clear()
    monkeypatch.setattr(driver, "driver", lambda: made_up)
    monkeypatch.setattr(driver, "cuda_stream_of", lambda device: made_up.streams[device])
    for module in (driver, direct):
        monkeypatch.setattr(module, "cuda_device", lambda: made_up.current)
    monkeypatch.setattr(torch.cuda, "device", made_up.using)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: made_up.current)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, int(device)))
    monkeypatch.setattr(nvrtc, "compile_cuda", compiled)
    yield made_up
    driver._arguments.cache_clear()
    driver._modules.clear()
    driver._primary_context.cache_clear()


def test_a_kernel_is_loaded_once_on_each_device(two: TwoDevices) -> None:
    made = CudaKernel("a text", "a test")
    for device in (*DEVICES, *DEVICES):
        with in_context(device):
            made.launch("one", [1, 2], 300, device.index)
            made.launch_blocks("other", [1, 2], 3, 128, 0, device.index)
    assert two.loaded == [(0, b"sm_90, part 0"), (1, b"sm_91, part 0")]
    assert two.launched == [(0, 70), (0, 70), (1, 71), (1, 71)] * 2


def test_functions_that_cut_rows_are_compiled_when_they_are_needed(two: TwoDevices) -> None:
    made = CudaKernel("a text", "a test")
    for name in (FUNCTIONS[0], FUNCTIONS[0], *FUNCTIONS):
        made.launch(name, [1], 300, 0)
    assert two.loaded == [(0, b"sm_90, part 0"), (0, b"sm_90, part 1")]


def test_a_short_call_is_prepared_in_the_context_of_its_device(two: TwoDevices) -> None:
    executable = object.__new__(CudaExecutable)
    executable.kernel = CudaKernel("a text", "a test")
    launch = executable.launcher([Launch(FUNCTIONS[0], 3)], 2, 1)
    assert two.loaded == [(1, b"sm_91, part 0")] and two.current == 0
    with pytest.raises(KernelError, match="could not launch a kernel: invalid resource handle"):
        launch(5, 6)  # whoever calls it has made its device the current one
    with in_context(DEVICES[1]):
        launch(5, 6)
        two.streams[1] = 99
        launch(5, 6)
    assert two.launched[1:] == [(1, 71), (1, 99)]


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("how", ["one", "blocks", "prepared"])
def test_threads_that_have_called_nothing_of_cuda_yet(two: TwoDevices, how: str, is_loaded: bool) -> None:
    """A thread of autograd, say, whose first call takes memory that torch has at hand."""
    made = CudaKernel("a text", "a test")
    executable = object.__new__(CudaExecutable)
    executable.kernel = made
    grids = [Launch(FUNCTIONS[0], 3)]
    ready = executable.launcher(grids, 2, 0) if is_loaded else None

    def call() -> None:
        if how == "one":
            made.launch(FUNCTIONS[0], [1, 2], 300, 0)
        elif how == "blocks":
            made.launch_blocks(FUNCTIONS[0], [1, 2], 3, 128, 10**6, 0)
        else:
            (ready or executable.launcher(grids, 2, 0))(5, 6)

    before = len(two.launched)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            pool.submit(call).result()
    assert two.launched[before:] == [(0, 70)] * 2 and two.retained == [0] and len(two.loaded) == 1


IMPORT = """
import torch

def refuse(*_):
    raise SystemExit("CUDA is touched")

for name in ("_lazy_init", "is_available", "device_count", "current_device", "init"):
    setattr(torch.cuda, name, refuse)
torch.backends.cuda.is_built = lambda: True
import scorch

S = scorch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 1.0], (2, 2))
print((S * 2.0).values().tolist())
with open("/proc/self/maps") as file:
    maps = file.read()
print([word for word in ("libcuda.so", "libnvrtc") if word in maps])
"""


@pytest.mark.skipif(not CAN_FORK or not Path("/proc/self/maps").exists(), reason="no /proc here")
def test_importing_and_the_cpu_touch_no_cuda() -> None:
    done = run_python(["-c", IMPORT], has="torch")
    assert done.stdout.splitlines() == ["[2.0, 2.0]", "[]"], done.stderr


# streams ---------------------------------------------------------------------------------------------


def test_what_is_cached_with_a_pattern_may_be_read_on_any_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    settled: list[str] = []
    monkeypatch.setattr(base, "settle", lambda device, what: settled.append(what))
    pattern = scorch.tensor([[0.0, 2.0], [3.0, 0.0]], format="csr").storage.pattern
    for _ in range(2):
        _ = pattern.present, pattern.mask(torch.float32)
    assert settled == ["the mask of a sparsity pattern"] * 2
    banded = scorch.tensor([[0.0, 2.0], [3.0, 0.0]], format="csr").to_format("banded").storage.pattern
    fresh = type(banded)(banded.format, banded.shape, banded.pos, banded.crd, banded.counts)
    settled.clear()
    for _ in range(2):
        _ = fresh.arrays
    assert settled == ["the coordinates of banded"]


def test_a_copy_of_a_pattern_is_waited_for_on_other_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[torch.device] = []
    monkeypatch.setattr(base, "record", lambda device: lambda: waits.append(device))
    pattern = scorch.tensor([[0.0, 2.0], [3.0, 0.0]], format="csr").storage.pattern
    copies = [pattern.to(META, non_blocking=True) for _ in range(3)]
    assert all(copy is copies[0] for copy in copies) and waits == [META] * 2


def test_a_pattern_is_not_copied_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = scorch.tensor([[0.0, 2.0], [3.0, 0.0]], format="csr").storage.pattern
    copied = pattern.to(META)

    def refuse(device: torch.device, what: str) -> None:
        raise DeviceError(f"Scorch cannot wait for {what}")

    monkeypatch.setattr(base, "check_waiting", refuse)
    assert pattern.to(META) is copied
    del copied
    with pytest.raises(DeviceError, match="a copy of a sparsity pattern"):
        pattern.to(META)


def test_streams_that_read_a_tensor_are_recorded_for_all_its_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[int] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda array, stream: recorded.append(id(array)))
    S = scorch.tensor([[0.0, 2.0], [3.0, 0.0]], format="csr")
    _ = torch.ones(3, 2) @ S  # which may read another format
    columns = S.to_format("csc").storage.pattern
    metadata.record_stream(S, SimpleNamespace())  # type: ignore[arg-type]
    wanted = [S.storage.values, *S.storage.pattern.arrays]
    if columns.format in S.storage.pattern.converted:
        wanted += S.storage.pattern.converted[columns.format][0].arrays
    assert {*map(id, wanted)} <= {*recorded}


CALLS = {
    "whether all values are finite": lambda on: streams.WaitingRoutines().are_finite([on]),
    "whether all values are finite and none is zero": lambda on: streams.WaitingRoutines().ask_divisor(on),
    "whether a value is not zero": lambda on: streams.WaitingRoutines().ask_nonzero(on),
    "whether coordinates are sorted": lambda on: streams.WaitingRoutines().has_sorted_rows(on, on, 3),
    "the order of coordinates": lambda on: streams.WaitingRoutines().sort_entries([on], (3,)),
    "the number of entries": lambda on: streams.WaitingRoutines().pick_rows(on, on, on, on),
}


@pytest.mark.whole
@pytest.mark.parametrize("what", CALLS)
def test_calls_that_must_wait_are_refused_by_name_in_a_captured_graph(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(DeviceError, match=f"cannot wait for {what}.* while a CUDA graph is being captured"):
        CALLS[what](SimpleNamespace(device=DEVICES[0]))


CHECKS = {
    "coordinates lie in the shape": lambda on: check.check_all_coordinates("indices", [on], (3,)),
    "coordinates lie in": lambda on: check.check_coordinates("crow_indices", on, 0, 3),
    "pointers are valid": lambda on: check.check_pointers("crow_indices", on, 2, 3, "rows"),
}


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    backend = SimpleNamespace(routines=streams.WaitingRoutines())
    monkeypatch.setitem(base._BACKENDS, "cuda", backend)


@pytest.mark.whole
@pytest.mark.parametrize("what", CHECKS)
@pytest.mark.usefixtures("capturing")
def test_checks_that_must_wait_are_refused_by_name_in_a_captured_graph(what: str) -> None:
    array = SimpleNamespace(device=DEVICES[0], numel=lambda: 3, shape=(3,))
    with pytest.raises(DeviceError, match=f"cannot wait for whether {what}"):
        CHECKS[what](array)


TORCHS = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned.",
    "CUDA error: operation not permitted when stream is capturing",
)


@pytest.mark.whole
@pytest.mark.parametrize("message", TORCHS)
@pytest.mark.usefixtures("capturing")
def test_operators_that_torch_refuses_in_a_captured_graph_are_named(message: str) -> None:
    operand = torch.Tensor._make_subclass(Placed, torch.zeros(3))
    found = call_errors.translate_error(RuntimeError(message), torch.nonzero, (operand,), {})
    assert isinstance(found, DeviceError)
    assert "cannot wait for the result of nonzero while a CUDA graph is being captured" in str(found)


def test_what_torch_says_of_the_processor_is_no_error_of_a_device() -> None:
    def export(tensor: torch.Tensor) -> None:
        raise AssertionError("stream should be None on cpu.")

    operand, own = torch.Tensor._make_subclass(Placed, torch.zeros(3)), OperandError("pass .values()")
    assert call_errors.translate_error(own, export, (operand,), {}) is own
    found = call_errors.translate_error(own, export, (torch.zeros(3),), {})
    assert found is not own and "stream should be None" in str(found)


class Placed(torch.Tensor):
    device = DEVICES[0]
