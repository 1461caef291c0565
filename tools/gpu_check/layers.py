"""What stands above single operations, on a device beside the CPU: training, graphs, copies, processes.

python -m tools.gpu_check.layers cuda              a line for each check
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import pickle
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

import scorch
from scorch._src.storage.budget import UNCHECKED_BYTES

Check = Callable[[str], None]
CHECKS: dict[str, Check] = {}
N, K = 300, 16


def check(function: Check) -> Check:
    CHECKS[function.__name__.replace("_", " ")] = function
    return function


def matrix(device: str, rows: int = N, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a sparse matrix, the same on every device."""
    generator = torch.Generator("cpu").manual_seed(seed)
    places = torch.rand(rows, N, generator=generator, device="cpu") < 0.05
    values = torch.randn(rows, N, generator=generator, device="cpu", dtype=torch.float64)
    return scorch.from_torch((places * values).to(dtype), format="csr").to(device)


def dense(device: str, *shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cpu").to(device)


def agree(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-4) -> None:
    """Compare a tensor with one on another device."""
    torch.testing.assert_close(
        _plain(found).double(), _plain(wanted).double(), rtol=tolerance, atol=tolerance, check_device=False
    )


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to_dense().cpu()


def like_the_cpu(function: Callable[[str], Any], device: str, tolerance: float = 1e-4) -> None:
    """Run a function on the device and on the CPU, and compare what it returns."""
    for found, wanted in zip(function(device), function("cpu"), strict=True):
        agree(found, wanted, tolerance)


# copies ----------------------------------------------------------------------------------------------


@check
def copies_and_files(device: str) -> None:
    S = matrix(device)
    for other in (copy.deepcopy(S), pickle.loads(pickle.dumps(S)), S.clone(), S.to(device), S.cpu()):
        agree(other, S)
    file = io.BytesIO()
    torch.save({"S": S}, file)
    for place in ("cpu", device):
        file.seek(0)
        loaded = torch.load(file, map_location=place, weights_only=False)["S"]
        assert loaded.device.type == torch.device(place).type
        agree(loaded, S)


@check
def pinned_memory(device: str) -> None:
    if device == "cpu":
        return
    pinned = matrix("cpu").pin_memory()
    assert pinned.is_pinned()
    moved = pinned.to(device, non_blocking=True)
    torch.cuda.synchronize()
    agree(moved, pinned)


@check
def default_device(device: str) -> None:
    places, values = torch.tensor([[0, 2], [1, 0]]), torch.tensor([1.0, 2.0])
    torch.set_default_device(device)
    try:
        made = [
            scorch.sparse_coo_tensor(places, values, (3, 3), device=device),
            scorch.sparse_coo_tensor([[0, 2], [1, 0]], [1.0, 2.0], (3, 3)),
            scorch.from_torch(torch.eye(3), format="csr"),
        ]
    finally:
        torch.set_default_device(None)
    devices = [tensor.device.type for tensor in made]
    assert set(devices) == {torch.device(device).type}, devices


@check
def two_devices_are_refused_by_name(device: str) -> None:
    if device == "cpu":
        return
    try:
        matrix(device) @ dense("cpu", N, K)
    except RuntimeError as error:
        assert "cpu" in str(error) and "cuda" in str(error), error
        return
    raise AssertionError("a product of tensors on two devices was computed")


# training --------------------------------------------------------------------------------------------


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = scorch.nn.SparseLinear(N, 64, density=0.1)
        self.second = torch.nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def trained(device: str, make: Callable[[Any], torch.optim.Optimizer], steps: int = 4) -> list[torch.Tensor]:
    model = Network().to(device)
    optimizer = make(model.parameters())
    x, target = dense(device, 32, N), torch.arange(32, device=device) % 4
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@check
def optimizers(device: str) -> None:
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=1e-2),
        lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
        lambda p: torch.optim.RMSprop(p, lr=1e-2),
    ):
        like_the_cpu(lambda place, make=make: trained(place, make), device, 2e-3)


@check
def mixed_precision(device: str) -> None:
    kind = torch.device(device).type
    model, x = Network().to(device), dense(device, 32, N)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler(kind)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        with torch.autocast(kind, torch.bfloat16 if kind == "cpu" else torch.float16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss))
    assert losses[-1] < losses[0], losses


@check
def layers_of_graphs(device: str) -> None:
    graph = scorch.from_torch((_plain(matrix("cpu")) != 0).float(), format="csr")

    def run(place: str) -> list[torch.Tensor]:
        found = []
        for kind in (scorch.nn.GCNConv, scorch.nn.GATConv, scorch.nn.SAGEConv):
            torch.manual_seed(0)
            layer = kind(K, 8).to(place)
            x = dense(place, N, K).requires_grad_()
            out = layer(x, graph.to(place))
            out.square().sum().backward()
            found += [out, x.grad]
        return found

    like_the_cpu(run, device, 1e-3)


@check
def exchange_of_weights(device: str) -> None:
    model = Network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exchange = scorch.nn.RigL(model, optimizer, every=2, until=6)
    before = _plain(model.first.weight) != 0
    for _ in range(6):
        optimizer.zero_grad()
        model(dense(device, 32, N)).square().mean().backward()
        optimizer.step()
        exchange.step()
    assert not torch.equal(_plain(model.first.weight) != 0, before)


@check
def pruned_models(device: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(N, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    x = dense("cpu", 20, N)
    small = scorch.sparsify(model, sparsity=0.9, prefer="size")
    wanted = small(x)
    agree(small.to(device)(x.to(device)), wanted)


@check
def second_gradients(device: str) -> None:
    def run(place: str) -> list[torch.Tensor]:
        S, X = matrix(place).requires_grad_(), dense(place, N, K).requires_grad_()
        (first,) = torch.autograd.grad((S @ X).pow(3).sum(), X, create_graph=True)
        return list(torch.autograd.grad(first.square().sum(), [S, X]))

    like_the_cpu(run, device, 1e-2)


@check
def deterministic_algorithms(device: str) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        S, X = matrix(device).requires_grad_(), dense(device, N, K).requires_grad_()
        grads = [torch.autograd.grad((S @ X).square().sum(), [S, X]) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    for first, second in zip(*grads, strict=True):
        assert torch.equal(_plain(first), _plain(second))


# compilers -------------------------------------------------------------------------------------------


@check
def scorch_compile(device: str) -> None:
    S, x = matrix(device), dense(device, N, K)

    def function(A: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.relu(A * 2.0) @ x)

    agree(scorch.compile(function)(S, x), function(S, x))


@check
def torch_compile(device: str) -> None:
    S, x = matrix(device), dense(device, N, K)

    def function(A: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(A @ x) * 2 + 1

    agree(torch.compile(function, fullgraph=True)(S, x), function(S, x))
    model = Network().to(device)
    compiled = torch.compile(model, fullgraph=True)
    y = dense(device, 8, N)
    agree(compiled(y), model(y))
    compiled(y).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@check
def export(device: str) -> None:
    model, x = Network().to(device), dense(device, 8, N)
    agree(torch.export.export(model, (x,)).module()(x), model(x))


@check
def solvers(device: str) -> None:
    S = matrix("cpu", dtype=torch.float64)
    A = scorch.from_torch(_plain(S @ S.T) + N * torch.eye(N, dtype=torch.float64), format="csr").to(device)
    b = dense(device, N).double()
    wanted = torch.linalg.solve(_plain(A), b.cpu())
    agree(scorch.linalg.cg(A, b), wanted)
    agree(torch.linalg.solve(A, b), wanted)


# the device ------------------------------------------------------------------------------------------


@check
def graphs_that_are_captured(device: str) -> None:
    if device == "cpu":
        return
    S, x = matrix(device), dense(device, N, K)
    (S @ x, S.T @ x, S * 2.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = S @ x
        other = S.T @ x
    x.copy_(dense(device, N, K, seed=5))
    graph.replay()
    torch.cuda.synchronize()
    agree(out, S @ x)
    agree(other, S.T @ x)


@check
def large_results_in_captured_graphs(device: str) -> None:
    if device == "cpu":
        return
    S = matrix(device)
    x = dense(device, N, UNCHECKED_BYTES // (4 * N) + 1)  # results are compared with the free memory
    wanted = S @ x
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = S @ x
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, wanted)


@check
def streams(device: str) -> None:
    if device == "cpu":
        return
    streams = [torch.cuda.Stream() for _ in range(3)]
    A, B, x = matrix(device), matrix(device, seed=2), dense(device, N, K)
    torch.cuda.synchronize()
    found = []
    for number in range(12):
        with torch.cuda.stream(streams[number % 3]):
            found.append(((A + B) @ x, A.to_format("csc") @ x, (A @ B) @ x))
    torch.cuda.synchronize()
    for several in found:
        for one, first in zip(several, found[0], strict=True):
            agree(one, first)
    agree(found[0][0], _plain(A + B) @ x.cpu())


@check
def repeated_calls(device: str) -> None:
    """Calls that repeat go through one function of C, on any stream and in a graph."""
    S, wide, narrow = matrix(device), dense(device, N, K), dense(device, N, 3)
    for _ in range(300):
        (S @ wide, S @ narrow)
    if device != "cpu":
        side, late = torch.cuda.Stream(), torch.zeros_like(wide)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_000_000)
            late.copy_(wide)
            found = S @ late
        side.synchronize()
        agree(found, _plain(S) @ wide.cpu())
    agree(S @ wide, _plain(S) @ wide.cpu())
    agree(S @ narrow, _plain(S) @ narrow.cpu())


@check
def copies_on_several_streams(device: str) -> None:
    """A pattern that one stream still copies is waited for by others."""
    if device == "cpu":
        return
    S, x = matrix("cpu").pin_memory(), dense(device, N, K)
    for _ in range(5):
        twice = S * 2.0
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(1_000_000)
            first = S.to(device, non_blocking=True)
        with torch.cuda.stream(torch.cuda.Stream()):
            found = twice.to(device, non_blocking=True) @ x
        torch.cuda.synchronize()
        agree(found, 2 * _plain(first) @ x.cpu())


@check
def several_devices(device: str) -> None:
    """Kernels run where operands are, whichever device is the current one."""
    wanted = matrix("cpu") @ dense("cpu", N, K)
    for number in range(torch.cuda.device_count() if device != "cpu" else 0):
        S, x = matrix(f"cuda:{number}"), dense(f"cuda:{number}", N, K)
        for _ in range(150):
            found = S @ x
        assert found.device.index == number
        agree(found, wanted)
        agree((S @ S) @ x, matrix("cpu") @ wanted)


@check
def memory_of_training(device: str) -> None:
    if device == "cpu":
        return
    n, entries, width = 200_000, 2_000_000, 64
    places = torch.randint(0, n, (2, entries), device=device)
    S = scorch.sparse_coo_tensor(places, torch.rand(entries, device=device), (n, n)).to_format("csr")
    S.requires_grad_()
    x = torch.rand(n, width, device=device, requires_grad=True)
    for _ in range(2):
        (S @ x).sum().backward()
        S.grad = x.grad = None
    torch.cuda.synchronize()
    out = S @ x
    arrays = sum(
        array.numel() * array.element_size() for array in (*S.storage.pattern.arrays, S.storage.values)
    )
    needed = 2 * (arrays + x.numel() * 4) + 2 * out.numel() * 4  # operands and results, with their gradients
    del out
    torch.cuda.reset_peak_memory_stats()
    (S @ x).square().sum().backward()
    peak = torch.cuda.max_memory_allocated()
    assert peak <= 3 * needed, f"{peak:,} bytes at most, operands, results and gradients are {needed:,}"


@check
def hypersparse_tensors(device: str) -> None:
    if device == "cpu":
        return
    n = 1_000_000
    places = torch.randint(0, n, (2, n), device=device)
    before = torch.cuda.memory_allocated()
    S = scorch.sparse_coo_tensor(places, torch.rand(n, device=device), (n, n)).to_format("csr")
    torch.cuda.reset_peak_memory_stats()
    for result in (S + S.T, S * S, S @ S, S @ torch.rand(n, device=device), S.relu().sum(1)):
        assert torch.isfinite(_some_values(result)).all()
    peak = torch.cuda.max_memory_allocated() - before
    assert peak < 2 << 30, f"{peak:,} bytes"


def _some_values(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.storage.values if isinstance(tensor, scorch.SparseTensor) else tensor


@check
def distributed_training(device: str) -> None:
    with _group(device):
        model = Network().to(device)
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        x = dense(device, 16, N)
        parallel(x).square().mean().backward()
        alone = Network().to(device)
        alone(x).square().mean().backward()
        for one, other in zip(parallel.parameters(), alone.parameters(), strict=True):
            agree(one.grad, other.grad)


@contextlib.contextmanager
def _group(device: str) -> Iterator[None]:
    """Have a process group of one process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo" if device == "cpu" else "nccl", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def main(device: str) -> dict[str, str]:
    """Run every check; return what went wrong in each, "" where nothing did."""
    found = {}
    for name, function in CHECKS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function(device)
            found[name] = ""
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        print(f"{name}: {found[name] or 'ok'}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(any(main(sys.argv[1]).values()))
