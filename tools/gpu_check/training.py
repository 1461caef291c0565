"""Checks of training on a device: optimizers, mixed precision, layers, compilers, solvers, processes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch

import scorch
from tools.gpu_check.checks import K, N, agree, check, dense, graph, like_the_cpu, matrix, plain

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
def optimizers_of_sparse_tensors(device: str) -> None:
    def trained(place: str, make: Callable[[Any], torch.optim.Optimizer]) -> list[torch.Tensor]:
        weight, x = torch.nn.Parameter(matrix(place)), dense(place, N, K)
        optimizer = make([weight])
        for _ in range(4):
            optimizer.zero_grad()
            (weight @ x).square().mean().backward()
            torch.nn.utils.clip_grad_norm_([weight], 1.0)
            optimizer.step()
        return [weight.detach()]

    for make in (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.Adam(p, lr=1e-2),
        lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True),
        lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
        lambda p: torch.optim.Adagrad(p, lr=1e-2),
    ):
        like_the_cpu(lambda place, make=make: trained(place, make), device, 2e-3)


@check
def captured_training_steps(device: str) -> None:
    """A whole training step is captured in a CUDA graph, and replays are the steps that follow."""
    if device == "cpu":
        return
    for name, make in _layers().items():
        found, wanted = (_trained_layer(device, make, is_captured) for is_captured in (True, False))
        for one, other in zip(found, wanted, strict=True):
            try:
                agree(one, other, 1e-3)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error


def _layers() -> dict[str, Callable[[], torch.nn.Module]]:
    nn = scorch.nn
    return {
        "GCNConv": lambda: nn.GCNConv(K, 8),
        "GCNConv, cached": lambda: nn.GCNConv(K, 32, cached=True),
        "SAGEConv": lambda: nn.SAGEConv(K, 8),
        "GATConv": lambda: nn.GATConv(K, 8, heads=2),
        "GATv2Conv": lambda: nn.GATv2Conv(K, 8, heads=2),
    }


def _trained_layer(
    device: str, make: Callable[[], torch.nn.Module], is_captured: bool, steps: int = 5
) -> list[torch.Tensor]:
    """Return the parameters after some steps, the last ones of which may be replays of a captured one."""
    torch.manual_seed(0)
    layer, adjacency, x = make().to(device), graph(device), dense(device, N, K)
    target = torch.arange(N, device=device) % 8
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2, capturable=True)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(layer(x, adjacency), target).backward()
        optimizer.step()

    warm = 3
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm):
            step()
    torch.cuda.current_stream().wait_stream(side)
    replay = step
    if is_captured:
        captured = torch.cuda.CUDAGraph()
        optimizer.zero_grad()
        with torch.cuda.graph(captured):
            step()
        replay = captured.replay
    for _ in range(steps - warm):
        replay()
    torch.cuda.synchronize()
    return [parameter.detach() for parameter in layer.parameters()]


def half_of(device: str) -> torch.dtype:
    return torch.bfloat16 if torch.device(device).type == "cpu" else torch.float16


@check
def mixed_precision(device: str) -> None:
    kind = torch.device(device).type
    model, x = Network().to(device), dense(device, 32, N)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler(kind)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        with torch.autocast(kind, half_of(device)):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss))
    assert losses[-1] < losses[0], losses
    # Gradients that overflow change nothing but the scale.
    scale, before = scaler.get_scale(), [plain(parameter) for parameter in model.parameters()]
    optimizer.zero_grad()
    scaler.scale(model(x).sum() * torch.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() < scale, "an overflow was not seen"
    for parameter, wanted in zip(model.parameters(), before, strict=True):
        assert torch.equal(plain(parameter), wanted), "a step with an overflow was made"


@check
def mixed_precision_of_sparse_calls(device: str) -> None:
    S, X, adjacency = matrix(device).requires_grad_(), dense(device, N, K).requires_grad_(), graph(device)
    torch.manual_seed(0)
    layers = [kind(K, 8).to(device) for kind in (scorch.nn.GCNConv, scorch.nn.GATConv, scorch.nn.SAGEConv)]
    calls: list[Callable[[], torch.Tensor]] = [lambda: S @ X, lambda: scorch.einsum("ij,jk->ik", S, X)]
    calls += [lambda layer=layer: layer(X, adjacency) for layer in layers]  # type: ignore[misc]
    for number, call in enumerate(calls):
        with torch.autocast(torch.device(device).type, half_of(device)):
            found = call()
        assert number > 0 or found.dtype == half_of(device), found.dtype
        wanted = call()
        grads = [torch.autograd.grad(out.float().square().sum(), [X])[0] for out in (found, wanted)]
        assert grads[0].dtype == torch.float32
        for one, other in ((found.float(), wanted), grads):
            error = (one - other).norm() / other.norm()
            assert error < 0.03, f"call {number} is off by {error:.3f}"


@check
def layers_of_graphs(device: str) -> None:
    def run(place: str) -> list[torch.Tensor]:
        found = []
        for kind in (scorch.nn.GCNConv, scorch.nn.GATConv, scorch.nn.SAGEConv):
            torch.manual_seed(0)
            layer = kind(K, 8).to(place)
            x = dense(place, N, K).requires_grad_()
            out = layer(x, graph(place))
            out.square().sum().backward()
            found += [out, x.grad]
        return found

    like_the_cpu(run, device, 1e-3)


@check
def exchange_of_weights(device: str) -> None:
    model = Network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exchange = scorch.nn.RigL(model, optimizer, every=2, until=6)
    before = plain(model.first.weight) != 0
    for _ in range(6):
        optimizer.zero_grad()
        model(dense(device, 32, N)).square().mean().backward()
        optimizer.step()
        exchange.step()
    assert not torch.equal(plain(model.first.weight) != 0, before)


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


# compilers -------------------------------------------------------------------------------------------


@check
def scorch_compile(device: str) -> None:
    S, x = matrix(device), dense(device, N, K)

    def chain(A: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.relu(A * 2.0) @ x)

    def attention(A: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(A * (x @ x.T), 1) @ x

    for function in (chain, attention):
        compiled = scorch.compile(function)
        agree(compiled(S, x), function(S, x))
        A, X = S.detach().requires_grad_(), x.detach().requires_grad_()
        grads = [torch.autograd.grad(f(A, X).square().sum(), [A, X]) for f in (compiled, function)]
        for found, wanted in zip(*grads, strict=True):
            agree(found, wanted, 1e-2)


@check
def torch_compile(device: str) -> None:
    S, x = matrix(device), dense(device, N, K)

    def function(A: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(A @ x) * 2 + 1

    compiled_function = torch.compile(function, fullgraph=True)
    agree(compiled_function(S, x), function(S, x))
    A, X = S.detach().requires_grad_(), x.detach().requires_grad_()
    grads = [torch.autograd.grad(f(A, X).square().sum(), [A, X]) for f in (compiled_function, function)]
    for found, wanted in zip(*grads, strict=True):
        agree(found, wanted, 1e-2)
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
    A = scorch.from_torch(plain(S @ S.T) + N * torch.eye(N, dtype=torch.float64), format="csr").to(device)
    b = dense(device, N).double()
    wanted = torch.linalg.solve(plain(A), b.cpu())
    agree(scorch.linalg.cg(A, b), wanted)
    agree(scorch.linalg.gmres(A, b), wanted)
    agree(torch.linalg.solve(A, b), wanted)
    found = [scorch.linalg.cg(A, b), scorch.linalg.gmres(A, b), torch.linalg.solve(A, b)]
    if importlib.util.find_spec("scipy"):
        found.append(scorch.linalg.eigsh(A, 4)[0])
        agree(found[-1].sort().values, torch.linalg.eigvalsh(plain(A))[-4:])
    assert {each.device.type for each in found} == {torch.device(device).type}

    def gradients(place: str) -> list[torch.Tensor]:
        M, c = A.detach().to(place).requires_grad_(), b.detach().to(place).requires_grad_()
        return list(torch.autograd.grad(torch.linalg.solve(M, c).square().sum(), [M, c]))

    like_the_cpu(gradients, device)


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
        agree(found, plain(S) @ wide.cpu())
    agree(S @ wide, plain(S) @ wide.cpu())
    agree(S @ narrow, plain(S) @ narrow.cpu())
