"""What ``explain`` says of CUDA devices, where there is none: grids as emulated, on a device made up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import grid_emulator
import scorch
from scorch._src.backends.base import Call
from scorch._src.backends.by_torch.graphs import Options, Rows, Scores
from scorch._src.backends.cuda.device import driver
from scorch._src.backends.cuda.device.cost import describe_cost, recorded
from scorch._src.backends.cuda.device.driver import FunctionFacts
from scorch._src.backends.cuda.device.kernel import CudaKernel, Launch
from scorch._src.explain.step import StepExplanation

THERE = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def emulated() -> Iterator[None]:
    with scorch.settings(backend="emulated"):
        yield


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> CudaKernel:
    """A kernel on a device that moves 4 TB/s, as a copy sees it, and runs 1,000 blocks at once."""
    monkeypatch.setattr(driver, "bandwidth", lambda device: 4e12 / 0.85)
    monkeypatch.setattr(driver, "blocks_at_once", lambda *_: 1000)
    monkeypatch.setattr(driver, "function_facts", lambda function, device: FunctionFacts(38, 0, 1024))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    kernel = CudaKernel("a text", "y = x")
    monkeypatch.setattr(kernel, "is_ready", lambda: True)
    monkeypatch.setattr(kernel, "function", lambda name, device: name)
    return kernel


def explained(text: str, *operands: Any, **named: Any) -> StepExplanation:
    return scorch.explain(text, *operands, **named).steps[-1]


def launched(text: str, *operands: Any) -> list[tuple[str, int]]:
    with recorded() as record:
        scorch.einsum(text, *operands)
    return [(launch.name, launch.blocks) for _, launch, _ in record.launched]


def grids(step: StepExplanation) -> list[int]:
    found = re.search(r"blocks x threads ([^;]*)", step.threads)
    assert found is not None, step.threads
    return [int(blocks.replace(",", "")) for blocks in re.findall(r"([\d,]+) x 128", found[1])]


CASES: dict[str, tuple[str, tuple[int, ...]]] = {
    "vector": ("ij,j->i", (40,)),
    "matrix": ("ij,jk->ik", (40, 64)),
    "odd matrix": ("ij,jk->ik", (40, 5)),
    "sampled": ("ij,jk,ik->ij", (40, 64)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("is_cut", [False, True])
def test_grids_that_are_told_are_those_that_run(
    name: str, is_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scorch._src.backends.cuda.routines.rows.MIN_PART", 4)
    monkeypatch.setattr("scorch._src.backends.cuda.routines.rows.MAX_UNCUT", 0 if is_cut else 100)
    text, shape = CASES[name]
    dense = torch.rand(300, 40) * (torch.rand(300, 40) < 0.2)
    dense[3] = 1
    A = scorch.from_torch(dense, format="csr")
    operands = [A, torch.ones(shape), *[torch.ones(300, 64)] * (name == "sampled")]
    ran = launched(text, *operands)
    assert [blocks for _, blocks in ran] == grids(explained(text, *operands))
    assert len(ran) == (2 if is_cut and name != "sampled" else 1)


def test_products_tell_of_all_launches() -> None:
    A = scorch.from_torch(torch.eye(40), format="csr")
    with recorded() as record:
        A @ A
    step = explained("ij,jk->ik", A, A)
    assert grids(step) == [10, 40, 10, 40, 40]
    assert "some launches count and some fill" in step.threads and "bytes at most" in step.threads
    launched = [launch.name for _, launch, _ in record.launched]
    assert launched == ["scorch_count_few", "scorch_count_many", "scorch_fill_few"], (
        "no row has many products"
    )


def test_operands_that_are_converted_first_have_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    A = scorch.from_torch(torch.eye(300), format="csc")
    step = explained("ij,jk->ik", A, torch.ones(300, 64))
    assert step.conversions and grids(step) == [38]


def test_elementwise_results_that_ran_have_a_grid() -> None:
    A, B = (scorch.from_torch(torch.eye(300) * factor, format="csr") for factor in (1, 2))
    text = "C[i,j] = A[i,j] + 3 * B[i,j]"
    assert grids(explained(text, A=A, B=B)) == [3, 3, 3, 3]  # that count entries of both, and fill them in
    calls = scorch.explain(lambda: scorch.evaluate(text, A=A, B=B), runs=1)().calls
    [kernel] = [kernel for call in calls for kernel in call.kernels if kernel.kind == "kernel"]
    assert kernel.step is not None and grids(kernel.step) == [3, 3, 3, 3]
    assert kernel.predicted is None


def test_costs_are_of_bytes_waves_and_launches(made_up: CudaKernel) -> None:
    said, seconds = describe_cost(made_up, [Launch("f", 1500)], Call(THERE, 24_000_000, 10))
    assert said == (
        "blocks x threads 1,500 x 128; 38 registers and no local memory a thread, "
        "1,024 bytes of shared memory a block; 24,000,000 bytes at least; "
        "about 12 us: 24 MB at 4 TB/s in 1.5 waves of blocks, and one launch"
    )
    assert seconds == pytest.approx(12e-6)


def test_costs_of_what_is_bounded_only_are_the_launches(
    made_up: CudaKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "function_facts", lambda function, device: FunctionFacts(255, 64, 0))
    launches = [Launch("f", 100, 128), Launch("g", 2000, 128, 9000)]
    said, seconds = describe_cost(made_up, launches, Call(THERE, 8_000, 10, exact=False))
    assert "100 x 128, then 2,000 x 128; 255 registers and 64 bytes of local memory" in said
    assert "9,000 bytes of shared memory a block; 8,000 bytes at most" in said
    assert said.endswith("at least 8 us: 2 launches") and seconds is None


def test_a_device_that_does_not_tell_is_not_predicted(
    made_up: CudaKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "bandwidth", lambda device: 0.0)
    said, seconds = describe_cost(made_up, [Launch("f", 1)], Call(THERE, 8, 2))
    assert said.endswith("8 bytes at least") and seconds is None


def test_bandwidth_is_clock_times_width(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {driver.MEMORY_CLOCK: 3_201_000, driver.BUS_WIDTH: 6144}
    monkeypatch.setattr(driver, "_device_attribute", lambda attribute, device: numbers[attribute])
    assert driver.bandwidth(0) == pytest.approx(4.917e12, rel=1e-3)


def told(call: Any) -> str:
    """The routines that ``explain`` shows of a function."""
    calls = scorch.explain(call, runs=1)().calls
    return "; ".join(kernel.statement for one in calls for kernel in one.kernels if kernel.kind == "routine")


def test_attention_names_its_kernels() -> None:
    mask = scorch.from_torch(torch.ones(70, 70).tril().bool(), format="csr")
    Q = torch.rand(70, 16)
    said = told(lambda: F.scaled_dot_product_attention(Q, Q, Q, attn_mask=mask))
    assert re.search(
        r"entries of a mask, by CUDA kernels: scorch_attention_forward \(blocks x threads 2 x 128", said
    )
    said = told(lambda: F.scaled_dot_product_attention(Q.double(), Q.double(), Q.double(), attn_mask=mask))
    assert "by torch's operations: float64 has no kernel" in said


@pytest.mark.parametrize("index", [torch.int32, torch.int16])
def test_graph_attention_and_maxima_name_their_way(index: torch.dtype) -> None:
    pos, crd = torch.arange(0, 41, 2).to(index), torch.randint(9, (40,)).to(index)
    x, targets = torch.rand(9, 2, 4), torch.rand(20, 2)
    routines = grid_emulator.EmulatedRoutines()
    scores = Scores(targets[:9], targets)
    attention = told(lambda: routines.graph_attention(Rows(pos, crd), x, scores, Options(0.2), False))
    maxima = told(lambda: routines.neighbour_max((pos, crd, None), x.flatten(1), False))
    if index == torch.int32:
        assert (
            attention == "attention of neighbors, by CUDA kernels: scorch_attend (blocks x threads 5 x 128)"
        )
        assert (
            maxima == "largest of the neighbors, by CUDA kernels: scorch_largest (blocks x threads 5 x 128)"
        )
    else:
        why = "by torch's operations: indices are neither int32 nor int64, or have gaps"
        assert attention == f"attention of neighbors, {why}"
        assert maxima == f"largest of the neighbors, {why}"
