"""Three processes that train, of which one may end or be late, and what they tell about it."""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint  # slow to import, so once before processes are forked

import scorch
import scorch.distributed as sd
from distributed.training import Training, features, graph, whole

WORLD, STEPS = 3, 4


def train(rank: int, folder: Path, dies_at: int | None) -> None:
    """Train from the last checkpoint on, which is saved after every second step."""
    if (folder / "last").exists():
        state = sd.load(folder / "last")
        training, begin = Training(state["A"], state["X"], state["W"], state["optimizer"]), state["step"]
    else:
        A = sd.partition(sd.shard(scorch.from_torch(graph(), format="csr")), "hash")
        training, begin = Training(A, A.rows_of(features()), torch.eye(3, dtype=torch.float64)), 0
    for step in range(begin, STEPS):
        if step == dies_at and rank == 1:
            hook = training.W.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))  # in backward
            assert hook is not None
        training.step()
        if step % 2:
            sd.save({**training.state(), "step": step + 1}, folder / "last")
    torch.save([begin, whole(training)], folder / f"{rank}.pt")


def come_late(rank: int, folder: Path, _: None) -> None:
    """One process comes after the timeout of the group."""
    A = sd.shard(scorch.from_torch(graph(), format="csr"))
    patient = A @ A.columns_of(features())  # kernels are there, and all processes too
    group = dist.new_group(timeout=datetime.timedelta(seconds=2))
    A = sd.shard(scorch.from_torch(graph(), format="csr"), group)
    dist.barrier()
    if rank == 2:
        time.sleep(6)
    sd.sum_processes(patient.sum(), group)


def differ(rank: int, folder: Path, _: None) -> None:
    """One process has another pattern, with as many entries in each row."""
    sd.shard(scorch.from_torch(graph().roll(int(rank == 1), 1), format="csr"))


def report(work: Any, rank: int, folder: Path, *arguments: Any) -> None:
    """Join the others, work, and write the error that comes of it."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), WORLD)
    patience = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=patience)
    found = {"error": "", "message": ""}
    try:
        work(rank, folder, *arguments)
    except Exception as error:
        found = {"error": type(error).__name__, "message": str(error)}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # a group whose processes have ended cannot be taken apart


def run(work: Any, folder: Path, *arguments: Any) -> list[dict[str, str]]:
    """Return what each of the processes reports; nothing of one that was killed."""
    (folder / "store").unlink(missing_ok=True)
    kind = multiprocessing.get_context("fork" if sys.platform.startswith("linux") else "spawn")
    processes = [kind.Process(target=report, args=(work, rank, folder, *arguments)) for rank in range(WORLD)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(200)
    found = []
    for rank, process in enumerate(processes):
        file = folder / f"{rank}.json"
        found.append(json.loads(file.read_text()) if file.exists() else {"killed": str(process.exitcode)})
        file.unlink(missing_ok=True)
        process.kill()
    return found


def main(folder: Path) -> None:
    """Write what happened in each of the stories."""
    told: dict[str, Any] = {}
    for name in ("undisturbed", "disturbed", "late", "differing"):
        (folder / name).mkdir()
    told["undisturbed"] = run(train, folder / "undisturbed", None)
    told["disturbed"] = run(train, folder / "disturbed", 3)
    told["restarted"] = run(train, folder / "disturbed", None)
    told["late"] = run(come_late, folder / "late", None)
    told["differing"] = run(differ, folder / "differing", None)
    (folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
