"""Checks of what calls wait for, of what they allocate, and of captured graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import scorch
from scorch._src.backends.cuda.device.streams import Told
from scorch._src.storage.budget import UNCHECKED_BYTES
from tools.gpu_check.checks import (
    K,
    N,
    agree,
    arrays_of,
    check,
    dense,
    graph,
    known_calls,
    matrix,
    plain,
    values_of,
)
from tools.gpu_check.tensors import refused

UNIT = 512  # bytes that torch's allocator gives away at once
# Calls that read operands by another order, or need memory for what they compute on the way.
WITH_TEMPORARIES = ("S.T @ X", "S.sum(0)", "A + B", "softmax", "S @ X in bfloat16", "MTTKRP")
MOST_TIMES = 3  # the memory of operands and results, for a forward and a backward pass
HYPERSPARSE_TIMES = 10  # the memory of operands and results, for any call on hypersparse tensors


@contextmanager
def nothing_waits(device: str) -> Iterator[None]:
    """Have whatever waits for the device raise."""

    def refuse(told: Told) -> list[int]:
        raise AssertionError("the host waits for a number")

    wait = Told.wait
    Told.wait = refuse  # type: ignore[method-assign]
    try:
        if device != "cpu":
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        Told.wait = wait  # type: ignore[method-assign]
        if device != "cpu":
            torch.cuda.set_sync_debug_mode("default")


# waiting and allocating ------------------------------------------------------------------------------


@check
def warm_calls_wait_for_nothing(device: str) -> None:
    """Also when they go through one function of C."""
    for repeats in (3, 150):
        for name, call in known_calls(device).items():
            for _ in range(repeats):
                wanted = call()
            try:
                with nothing_waits(device):
                    found = call()
            except Exception as error:
                raise AssertionError(f"{name}, after {repeats} calls: {error}") from error
            agree(found, wanted)


@check
def warm_calls_allocate_their_results(device: str) -> None:
    if device == "cpu":
        return
    for repeats in (3, 150):
        for name, call in known_calls(device).items():
            for _ in range(repeats):
                call()
            given = _allocated()
            result = call()
            needed = -(-_bytes(values_of(result)) // UNIT) * UNIT
            most = 3 * needed + (32 << 10) if name in WITH_TEMPORARIES else needed
            spent = _allocated() - given
            assert spent <= most, f"{name}, after {repeats} calls: {spent:,} bytes, its result has {needed:,}"


def _allocated() -> int:
    """Return the bytes that torch's allocator has given away so far."""
    return int(torch.cuda.memory_stats()["allocated_bytes.all.allocated"])


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@check
def training_waits_for_nothing(device: str) -> None:
    """Forward and backward passes of layers whose patterns stay."""
    for name, step in _steps(device).items():
        for _ in range(3):
            step()
        try:
            with nothing_waits(device):
                step()
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error


def _steps(device: str) -> dict[str, Callable[[], Any]]:
    torch.manual_seed(0)
    S, X = matrix(device).requires_grad_(), dense(device, N, K).requires_grad_()
    adjacency = graph(device)
    layers = {kind.__name__: kind(K, 8).to(device) for kind in (scorch.nn.GCNConv, scorch.nn.SAGEConv)}
    layers["GATConv"] = scorch.nn.GATConv(K, 8, heads=2).to(device)
    linear, batch = scorch.nn.SparseLinear(N, 64, density=0.1).to(device), dense(device, 8, N)

    def product() -> None:
        torch.autograd.grad((S @ X).square().sum(), [S, X])

    def layer_step(layer: torch.nn.Module) -> Callable[[], None]:
        return lambda: layer(X, adjacency).square().sum().backward()

    return {
        "S @ X": product,
        "SparseLinear": lambda: linear(batch).square().sum().backward(),
        **{name: layer_step(layer) for name, layer in layers.items()},
    }


# captured graphs -------------------------------------------------------------------------------------


@check
def graphs_that_are_captured(device: str) -> None:
    if device == "cpu":
        return
    for repeats in (2, 150):
        for name, call in known_calls(device).items():
            for _ in range(repeats):
                wanted = call()
            torch.cuda.synchronize()
            captured = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(captured):
                    out = call()
            except Exception as error:
                raise AssertionError(f"{name}, after {repeats} calls: {error}") from error
            values_of(out).fill_(0)
            captured.replay()
            torch.cuda.synchronize()
            assert torch.equal(plain(out), plain(wanted)), name


@check
def graphs_with_new_numbers(device: str) -> None:
    """A graph that is replayed computes with the numbers of its operands now, in a training step too."""
    if device == "cpu":
        return
    S, x = matrix(device).requires_grad_(), dense(device, N, K).requires_grad_()
    for _ in range(2):
        torch.autograd.grad((S @ x).square().sum(), [S, x])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=side):
        out = S @ x
        grads = torch.autograd.grad(out.square().sum(), [S, x])
    with torch.no_grad():
        x.copy_(dense(device, N, K, seed=5))
        S.values().mul_(0.5)
    captured.replay()
    torch.cuda.synchronize()
    agree(out, S @ x)
    for found, wanted in zip(grads, torch.autograd.grad((S @ x).square().sum(), [S, x]), strict=True):
        agree(found, wanted, 1e-3)


@check
def large_results_in_captured_graphs(device: str) -> None:
    if device == "cpu":
        return
    S = matrix(device)
    x = dense(device, N, UNCHECKED_BYTES // (4 * N) + 1)  # results are compared with the free memory
    wanted = S @ x
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = S @ x
    captured.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, wanted)


@check
def calls_that_graphs_refuse(device: str) -> None:
    """What must wait for the device says so during a capture, and leaves the device as it was."""
    if device == "cpu":
        return
    S, B, D = matrix(device), matrix(device, seed=2), dense(device, N, N) + 3.0
    rows, places = torch.arange(5, device=device), torch.zeros(2, 3, dtype=torch.long, device=device)
    calls: dict[str, Callable[[], Any]] = {
        "S @ B": lambda: S @ B,
        "S[rows]": lambda: S[rows],
        "a new pattern": lambda: S + other,
        "coordinates": lambda: scorch.sparse_coo_tensor(places, D[0, :3], (3, 3)),
        "S * dense": lambda: S * D,
        "S / dense": lambda: S / D,
        "S + dense": lambda: S + D,
    }
    for name, call in calls.items():
        other = matrix(device, seed=6)
        call()
        other = matrix(device, seed=7)
        torch.cuda.synchronize()
        try:
            with refused("CUDA graph is being captured"), torch.cuda.graph(torch.cuda.CUDAGraph()):
                call()
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        agree(S @ D, plain(S) @ D.cpu(), 1e-3)


# repeated results ------------------------------------------------------------------------------------


def _repeated(device: str) -> dict[str, Callable[[], list[torch.Tensor]]]:
    S, B, X = matrix(device), matrix(device, seed=2), dense(device, N, K)
    crd, values = torch.cat([S.to_format("coo").indices()] * 5, 1), dense(device, 5 * S.values().numel())
    q, k, v = (dense(device, 1, 2, 256, 32, seed=seed).requires_grad_() for seed in range(3))
    mask = scorch.nn.masks.window(256, 20, device=device)
    attention = torch.nn.functional.scaled_dot_product_attention
    A, Y = matrix(device).requires_grad_(), dense(device, N, K).requires_grad_()
    torch.manual_seed(0)
    layer = scorch.nn.GATConv(K, 8, heads=2).to(device)
    adjacency = graph(device)
    found: dict[str, Callable[[], list[torch.Tensor]]] = {
        name: lambda call=call: [call()] for name, call in known_calls(device).items()
    }
    return found | {
        "A @ B": lambda: [S @ B],
        "coordinates that repeat": lambda: [scorch.sparse_coo_tensor(crd, values, (N, N))],
        "S.T @ X on a new pattern": lambda: [matrix(device).T @ X],
        "gradients of a product": lambda: list(torch.autograd.grad((A @ Y).square().sum(), [A, Y])),
        "attention": lambda: list(
            torch.autograd.grad(attention(q, k, v, attn_mask=mask).square().sum(), [q, k, v])
        ),
        "graph attention": lambda: list(torch.autograd.grad(layer(Y, adjacency).square().sum(), [Y])),
    }


@check
def results_repeat(device: str) -> None:
    """Every call returns the same bits each time, atomics or not."""
    for name, call in _repeated(device).items():
        wanted = [plain(each) for each in call()]
        for _ in range(5):
            for one, other in zip(call(), wanted, strict=True):
                assert torch.equal(plain(one), other), f"{name} has other bits"


@check
def deterministic_algorithms(device: str) -> None:
    """They take precedence over the setting that allows sums in any order."""
    torch.use_deterministic_algorithms(True)
    try:
        with scorch.settings(deterministic=False):
            S, X = matrix(device), dense(device, N, K)
            said = scorch.explain("ji,jk->ik", S, X).steps[-1].inner
            assert "atomics" not in said, said
            for name, call in _repeated(device).items():
                if name in ("attention", "graph attention"):  # cuBLAS wants a setting of its own
                    continue
                first, second = ([plain(each) for each in call()] for _ in range(2))
                assert all(map(torch.equal, first, second)), f"{name} has other bits"
    finally:
        torch.use_deterministic_algorithms(False)


@check
def sums_in_any_order(device: str) -> None:
    """They are allowed where the setting says so, and have the same values but for rounding."""
    with scorch.settings(deterministic=False):
        S, X = matrix(device, seed=8), dense(device, N, K)
        said = scorch.explain("ji,jk->ik", S, X).steps[-1].inner
        assert device == "cpu" or "adds by atomics" in said, said
        agree(S.T @ X, plain(S).T @ X.cpu())
        agree(matrix(device, seed=8, form="csc") @ X, plain(S) @ X.cpu())
        agree(S.sum(0), plain(S).sum(0))


# memory ----------------------------------------------------------------------------------------------


@check
def memory_is_torchs(device: str) -> None:
    """Torch's allocator counts the arrays of a tensor, and has them back."""
    if device == "cpu":
        return
    here = matrix("cpu")
    here.to(device) @ dense(device, N, K)  # after which nothing else is kept
    gc.collect()
    before = torch.cuda.memory_allocated()
    S = matrix("cpu", seed=9).to(device)
    storages = {array.untyped_storage().data_ptr(): array.untyped_storage() for array in arrays_of(S)}
    needed = sum(-(-storage.nbytes() // UNIT) * UNIT for storage in storages.values())
    assert torch.cuda.memory_allocated() - before == needed, "the allocator counted other bytes"
    del S, storages
    gc.collect()
    assert torch.cuda.memory_allocated() == before, "memory was kept"


Case = tuple[list[torch.Tensor], Callable[[], torch.Tensor]]  # operands, and a forward pass


def _large(device: str) -> dict[str, Callable[[], Case]]:
    n, entries, width, tokens = (200_000, 2_000_000, 64, 8192) if device != "cpu" else (300, 3_000, 8, 64)

    def sparse() -> torch.Tensor:
        places = torch.randint(0, n, (2, entries), device=device)
        made = scorch.sparse_coo_tensor(places, torch.rand(entries, device=device), (n, n))
        return made.to_format("csr").requires_grad_()

    def rows() -> torch.Tensor:
        return torch.rand(n, width, device=device, requires_grad=True)

    def spmm() -> Case:
        S, x = sparse(), rows()
        return [S, x], lambda: S @ x

    def sampled() -> Case:
        S, P, Q = sparse(), rows(), rows()
        return [S, P, Q], lambda: scorch.einsum("ij,ik,jk->ij", S, P, Q)

    def softmax() -> Case:
        S = sparse()
        return [S], lambda: torch.sparse.softmax(S, 1)

    def layer_of(kind: Callable[..., torch.nn.Module]) -> Callable[[], Case]:
        def make() -> Case:
            layer, S, x = kind(width, width).to(device), sparse().detach(), rows()
            return [S, x, *layer.parameters()], lambda: layer(x, S)

        return make

    def attention() -> Case:
        q, k, v = (torch.rand(1, 4, tokens, width, device=device, requires_grad=True) for _ in range(3))
        mask = scorch.nn.masks.window(tokens, 16, device=device)
        product = torch.nn.functional.scaled_dot_product_attention
        return [q, k, v, mask], lambda: product(q, k, v, attn_mask=mask)

    return {
        "S @ X": spmm,
        "sampled product": sampled,
        "softmax": softmax,
        "GCNConv": layer_of(scorch.nn.GCNConv),
        "SAGEConv": layer_of(scorch.nn.SAGEConv),
        "GATConv": layer_of(scorch.nn.GATConv),
        "attention": attention,
    }


def _check_peaks(device: str, warm: int) -> None:
    """Compare the most memory of a step, after some, with that of operands, results and gradients."""
    over = []
    for name, make in _large(device).items():
        gc.collect()
        base = torch.cuda.memory_allocated() if device != "cpu" else 0
        operands, forward = make()
        tracked = [tensor for tensor in operands if tensor.requires_grad]
        for _ in range(warm):
            torch.autograd.grad(_loss(forward()), tracked)
        if device != "cpu":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        result = forward()
        needed = sum(map(_bytes, (array for tensor in operands for array in arrays_of(tensor))))
        needed += sum(_bytes(values_of(tensor)) for tensor in tracked) + 2 * _bytes(values_of(result))
        torch.autograd.grad(_loss(result), tracked)
        if device != "cpu":
            peak = torch.cuda.max_memory_allocated() - base
            print(f"    {name}, after {warm} steps: {peak / needed:.2f} times", flush=True)
            if peak > MOST_TIMES * needed:
                over.append(f"{name}: {peak:,} bytes, operands, results and gradients have {needed:,}")
        del operands, forward, tracked, result
    assert not over, "; ".join(over)


def _loss(result: torch.Tensor) -> torch.Tensor:
    values = result.values() if isinstance(result, scorch.SparseTensor) else result
    return values.square().sum()


@check
def memory_of_training(device: str) -> None:
    _check_peaks(device, 2)


@check
def memory_of_a_first_step(device: str) -> None:
    """With what is converted, sorted and kept for the next ones."""
    _check_peaks(device, 0)


@check
def hypersparse_tensors(device: str) -> None:
    """A matrix with a million rows and columns and as many nonzeros takes memory for these."""
    n = 1_000_000 if device != "cpu" else 20_000
    places, numbers = torch.randint(0, n, (2, n), device=device), torch.rand(n, device=device)
    for form in ("csr", "coo"):
        S = scorch.sparse_coo_tensor(places, numbers, (n, n)).to_format(form)
        for name, call in _hypersparse_calls(S, places, numbers).items():
            if device != "cpu":
                torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated() if device != "cpu" else 0
            results = call()
            assert all(torch.isfinite(values_of(result)).all() for result in results), name
            if device != "cpu":
                needed = sum(_bytes(array) for tensor in (S, *results) for array in arrays_of(tensor))
                peak = torch.cuda.max_memory_allocated() - before
                print(f"    {name}, {form}: {peak / needed:.2f} times", flush=True)
                assert peak <= HYPERSPARSE_TIMES * needed, f"{name}: {peak:,} bytes for {needed:,}"
        total, wanted = (S + S.T).to(torch.float64).sum().item(), 2 * numbers.double().sum().item()
        assert abs(total - wanted) < 1e-5 * wanted, f"the sum is {total}, not {wanted}"


def _hypersparse_calls(
    S: torch.Tensor, places: torch.Tensor, numbers: torch.Tensor
) -> dict[str, Callable[[], list[torch.Tensor]]]:
    n, form = S.shape[0], S.format
    x = torch.rand(n, device=S.device, requires_grad=True)

    def product() -> list[torch.Tensor]:
        A = S.detach().requires_grad_()
        out = A @ x
        return [out, *torch.autograd.grad(out.square().sum(), [A, x])]

    return {
        "construction": lambda: [scorch.sparse_coo_tensor(places, numbers, (n, n)).to_format(form)],
        "S + S.T": lambda: [S + S.T],
        "S * S": lambda: [S * S],
        "S @ S": lambda: [S @ S],
        "S.T": lambda: [S.T.to_format(form)],
        "relu": lambda: [torch.relu(S)],
        "S.sum(1)": lambda: [S.sum(1)],
        "S @ x and gradients": product,
    }
