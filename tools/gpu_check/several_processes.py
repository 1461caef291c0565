"""Checks with processes of their own: imports, forks, cached kernels, training by several."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import torch
import torch.distributed as dist

from tools.gpu_check.checks import N, agree, check, dense
from tools.gpu_check.processes import ROOT, environment
from tools.gpu_check.training import Network

IMPORT = """
import os, sys, torch, scorch
device = sys.argv[1]
S = scorch.from_torch(2 * torch.eye(5), format="csr")
assert (S @ torch.ones(5, 2)).sum().item() == 20
assert not torch.cuda.is_initialized(), "importing Scorch, or a call on the CPU, starts CUDA"
child = os.fork()
assert (S.to(device) @ torch.ones(5, 2, device=device)).sum().item() == 20
if not child:
    os._exit(0)
_, status = os.waitpid(child, 0)
assert not status, "the process that was forked after the import failed"
"""

KERNELS = """
import sys, time, torch, scorch
from scorch._src.backends.cuda.device import kernel, nvrtc
made, launched = [], kernel.Launches()
compile_text = nvrtc.compile_text
nvrtc.compile_text = lambda *words: (made.append(1), compile_text(*words))[1]
kernel.LAUNCHES.append(launched)
S = scorch.from_torch(2 * torch.eye(50), format="csr").cuda()
for _ in range(3):
    (S @ torch.ones(50, 2, device="cuda"), S + S.T, S @ S, torch.softmax(S, 1))
    torch.cuda.synchronize()
    time.sleep(1)  # some are compiled by a thread
print(len(made), len(launched.launched))
"""


def _said(script: str, *words: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        cwd=ROOT,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not done.returncode, " ".join(done.stderr.split())[-300:]
    return done.stdout


@check
def imports_and_forks(device: str) -> None:
    """Importing Scorch starts nothing on a device, so that processes may be forked after it."""
    _said(IMPORT, device)


@check
def kernels_of_other_processes(device: str) -> None:
    """A second process compiles nothing that the first one has compiled."""
    if device == "cpu":
        return
    with tempfile.TemporaryDirectory() as folder:
        first, second = (_said(KERNELS, SCORCH_CACHE_DIR=folder).split() for _ in range(2))
    assert int(first[0]) > 0, "the first process compiled nothing"
    assert int(second[0]) == 0, f"the second process compiled {second[0]} texts"
    assert int(second[1]) >= int(first[1]) > 0, f"{first[1]} launches, then {second[1]}"


# training by several ---------------------------------------------------------------------------------


@check
def distributed_training(device: str) -> None:
    with _group("gloo" if device == "cpu" else "nccl", 0, 1, _free_port()):
        model = Network().to(device)
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        x = dense(device, 16, N)
        parallel(x).square().mean().backward()
        alone = Network().to(device)
        alone(x).square().mean().backward()
        for one, other in zip(parallel.parameters(), alone.parameters(), strict=True):
            agree(one.grad, other.grad)


@check
def training_by_two_processes(device: str) -> None:
    """By NCCL where there are two GPUs; two processes on one GPU exchange gradients by gloo."""
    code = "import sys; from tools.gpu_check.several_processes import train; train(*sys.argv[1:])"
    port = str(_free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, device, str(rank), port],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            said, _ = process.communicate(timeout=120)
            assert not process.returncode, " ".join(said.split())[-300:]
    finally:
        for process in processes:
            process.kill()


def train(device: str, number: str, port: str) -> None:
    """Compare the gradients of one of two processes with those of the whole batch."""
    rank, backend = int(number), "gloo"
    if device != "cpu" and torch.cuda.device_count() > 1:
        device, backend = f"cuda:{rank}", "nccl"
    with _group(backend, rank, 2, int(port)):
        x = dense(device, 32, N)
        parallel = torch.nn.parallel.DistributedDataParallel(Network().to(device))
        parallel(x[16 * rank :][:16]).square().mean().backward()
        alone = Network().to(device)
        alone(x).square().mean().backward()
        for one, other in zip(parallel.parameters(), alone.parameters(), strict=True):
            agree(one.grad, other.grad)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextlib.contextmanager
def _group(backend: str, rank: int, size: int, port: int) -> Iterator[None]:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a machine may have no other
    dist.init_process_group(backend, rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()
