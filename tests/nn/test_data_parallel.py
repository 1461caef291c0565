"""Two processes that learn sparse parameters together, by ``DistributedDataParallel(module)`` alone."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import scorch
from processes import in_two_processes
from scorch.errors import CallError, UnsupportedError
from scorch.nn import SparseLinear

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo"
)

BATCH = 12


class Sparse(torch.nn.Module):
    """Only sparse parameters: one of each format."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(scorch.randn(7, 8, density=0.4, format="csr", dtype=torch.float64))
        self.v = torch.nn.Parameter(scorch.randn(3, 7, density=0.6, format="coo", dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(torch.tanh(x @ self.w.t()), self.v)


class Mixed(torch.nn.Module):
    """Dense and sparse parameters, one used twice, one frozen, a sparse buffer, a layer of Scorch."""

    def __init__(self) -> None:
        super().__init__()
        kind = {"density": 0.5, "dtype": torch.float64}
        self.first = Sparse()
        self.dense = torch.nn.Linear(3, 6, dtype=torch.float64)
        self.layer = SparseLinear(6, 6, 0.5, dtype=torch.float64)
        self.square = torch.nn.Parameter(scorch.randn(6, 6, format="csc", **kind))
        self.again = self.square
        self.frozen = torch.nn.Parameter(scorch.randn(6, 6, format="csr", **kind), requires_grad=False)
        self.register_buffer("graph", scorch.randn(6, 6, format="csr", **kind))
        self.single = torch.nn.Parameter(scorch.randn(3, 6, format="csr", density=0.5, dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(torch.tanh(self.dense(self.first(x)))) @ self.square @ self.again
        return (x @ self.frozen @ self.graph).float() @ self.single.t()


class Subclass(DistributedDataParallel):
    """Another class of the same kind, as pickles name it."""


class Branches(torch.nn.Module):
    """Parameters of which a call uses one, or none; ``never`` is not used at all."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("left", "right", "never"):
            S = scorch.randn(3, 8, density=0.5, format="csr", dtype=torch.float64)
            self.register_parameter(name, torch.nn.Parameter(S))
        self.bias = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, x: torch.Tensor, name: str | None) -> torch.Tensor:
        return self.bias + (x[:, :3] if name is None else x @ getattr(self, name).t())


def made(kind: type[torch.nn.Module], rank: int = 0) -> Any:
    """The same module in each process, except that only the first one has the right values."""
    torch.manual_seed(0)
    found = kind()
    if rank:
        for tensor in (*found.parameters(), *found.buffers()):
            if tensor.is_floating_point():
                tensor.data.mul_(0.5)
    return found


def batches(count: int = 4) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(BATCH, 8, dtype=torch.float64, generator=source)
        yield x, torch.randn(BATCH, 3, dtype=torch.float64, generator=source)


def part(rank: int | None) -> slice:
    return slice(None) if rank is None else slice(rank * BATCH // 2, (rank + 1) * BATCH // 2)


def loss_of(net: Any, x: torch.Tensor, y: torch.Tensor, rank: int | None) -> torch.Tensor:
    return (net(x[part(rank)]) - y[part(rank)]).square().mean()


def arrays(tensors: Any) -> list[torch.Tensor]:
    """Dense copies, in an order that is always the same."""
    return [
        tensor.detach().to_dense().clone() if tensor is not None else torch.zeros(()) for tensor in tensors
    ]


def trained(net: Any, rank: int | None, make: Callable[[Any], torch.optim.Optimizer]) -> list[torch.Tensor]:
    """What is learned by steps after two batches each, with gradients clipped and one penalty."""
    optimizer = make([parameter for parameter in net.parameters() if parameter.requires_grad])
    for number, (x, y) in enumerate(batches(6)):
        is_waiting = number in (2, 4) and rank is not None
        with net.no_sync() if is_waiting else contextlib.nullcontext():
            loss_of(net, x, y, rank).backward()
        if number % 2:
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    return [norm.detach(), *arrays(net.parameters())]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.1)


# each of these runs in two processes, with its rank, and alone, with None ----------------------------


def trains(rank: int | None, kind: type[torch.nn.Module], make: Any, **options: Any) -> list[torch.Tensor]:
    net = made(kind, rank or 0)
    return trained(net if rank is None else DistributedDataParallel(net, **options), rank, make)


def uses_some(rank: int | None) -> list[torch.Tensor]:
    """One process uses one parameter, the other another, or one none; nobody the third."""
    net = made(Branches, rank or 0)
    found = []
    net = net if rank is None else DistributedDataParallel(net, find_unused_parameters=True)
    for (x, y), names in zip(batches(2), (("left", "right"), ("left", None)), strict=True):
        net.zero_grad()
        parts = range(2) if rank is None else [rank]
        for number in parts:
            loss = (net(x[part(number)], names[number]) - y[part(number)]).square().mean()
            (loss / len(parts)).backward()
        found += arrays(parameter.grad for parameter in net.parameters())
    return found


def recomputes(rank: int | None) -> list[torch.Tensor]:
    """A backward pass inside of another, and a part of the module outside of it."""
    net = made(Mixed, rank or 0)
    forward = net.forward
    net.forward = lambda x: checkpoint(forward, x.requires_grad_(), use_reentrant=True) @ torch.eye(3)
    whole = net if rank is None else DistributedDataParallel(net)
    for x, y in batches(2):
        loss_of(whole, x.clone(), y, rank).backward()
    return arrays(parameter.grad for parameter in net.parameters())


def penalized(rank: int | None) -> list[torch.Tensor]:
    """Parameters used outside of the module too, and gradients asked for on the way."""
    net = made(Sparse, rank or 0)
    whole = net if rank is None else DistributedDataParallel(net)
    for x, y in batches(2):
        loss = loss_of(whole, x, y, rank)
        (slope,) = torch.autograd.grad(loss, [net.w], retain_graph=True)
        assert slope.nnz == net.w.nnz
        (loss + 0.1 * net.v.square().sum()).backward()
    return arrays(parameter.grad for parameter in net.parameters())


def copied(rank: int | None) -> list[torch.Tensor]:
    """What was trained is saved, loaded into another module, copied and pickled; all go on learning alike."""
    net = made(Mixed, rank or 0)
    whole = net if rank is None else Subclass(net)
    for x, y in batches(1):
        loss_of(whole, x, y, rank).backward()
    sgd(net.parameters()).step()
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    file.seek(0)
    torch.manual_seed(0)
    other: Any = Mixed()
    other = other if rank is None else DistributedDataParallel(other)
    other.load_state_dict(torch.load(file))
    found = []
    for module in (other, copy.deepcopy(whole), pickle.loads(pickle.dumps(whole))):
        module.zero_grad()
        for x, y in batches(1):
            loss_of(module, x, y, rank).backward()
        found += arrays(parameter.grad for parameter in module.parameters())
    return found


def sends_buffers(rank: int | None) -> list[torch.Tensor]:
    """What the first process writes to a buffer is what all compute with."""
    net = made(Mixed, rank or 0)
    whole = net if rank is None else DistributedDataParallel(net)
    found = []
    for factor, (x, y) in zip((1.0, 3.0, 1.0), batches(3), strict=True):
        with torch.no_grad():
            net.graph.mul_(5.0 if rank else factor)
        loss_of(whole, x, y, rank).backward()
        found += arrays([net.graph, net.square.grad])
    return found


OPTIONS: dict[str, Any] = {
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "unused": {"find_unused_parameters": True},
    "no buffers": {"broadcast_buffers": False},
}
WORKS: dict[str, Callable[[int | None], list[torch.Tensor]]] = {
    "sparse, sgd": lambda rank: trains(rank, Sparse, sgd),
    "sparse, adamw": lambda rank: trains(rank, Sparse, adamw),
    "mixed, sgd": lambda rank: trains(rank, Mixed, sgd),
    "mixed, adamw": lambda rank: trains(rank, Mixed, adamw),
    **{
        f"{kind.__name__}, {name}": lambda rank, kind=kind, options=options: trains(
            rank, kind, sgd, **options if rank is not None else {}
        )
        for name, options in OPTIONS.items()
        for kind in (Sparse, Mixed)
        if (name, kind) != ("no buffers", Mixed)
    },
    "uses some": uses_some,
    "recomputes": recomputes,
    "penalized": penalized,
    "copied": copied,
    "sends buffers": sends_buffers,
}


def work_together(rank: int) -> dict[str, list[torch.Tensor]]:
    return {name: work(rank) for name, work in WORKS.items()}


def refuse(rank: int) -> list[str]:
    """What each process is told when the places differ, from the beginning or later, and of ``join``."""
    said = []

    def hear(call: Callable[[], Any], kind: type[Exception]) -> None:
        try:
            call()
        except kind as error:
            said.append(str(error))

    torch.manual_seed(rank)
    other = Sparse()
    hear(lambda: DistributedDataParallel(other), CallError)
    same = made(Sparse)
    if rank:
        same.v = torch.nn.Parameter(same.v.detach().to_format("csr"))
    hear(lambda: DistributedDataParallel(same), CallError)
    net = DistributedDataParallel(made(Sparse))
    x = torch.ones(2, 8, dtype=torch.float64)
    net(x).sum().backward()
    net.zero_grad()
    if rank:
        with torch.no_grad():
            net.module.w.copy_(scorch.rand(7, 8, density=0.2, format="csr", dtype=torch.float64))
    hear(lambda: net(x).sum().backward(), CallError)

    def join() -> None:
        with torch.distributed.algorithms.join.Join([net]):
            pass

    hear(join, UnsupportedError)
    return said


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[torch.Tensor]]]:
    """What both processes found, for all names of work."""
    return in_two_processes(work_together, tmp_path_factory.mktemp("together"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", WORKS)
def test_two_processes_learn_what_one_learns_of_the_joined_batch(together: Any, name: str) -> None:
    first, second = (found[name] for found in together)
    alone = WORKS[name](None)
    for one, other, expected in zip(first, second, alone, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-6)  # one parameter is of float32


def test_places_that_differ_are_refused_in_all_processes(tmp_path: Path) -> None:
    for said in in_two_processes(refuse, tmp_path):
        assert len(said) == 4
        assert "'w' has a different" in said[0] and "seed" in said[0]
        assert "'v' has a different format" in said[1]
        assert "'w' now has different sparsity patterns" in said[2]
        assert "DistributedSampler" in said[3]
