"""Processes that know each other, for tests of what they learn and compute together."""

from __future__ import annotations

import datetime
import faulthandler
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fork_server import run_python

SECONDS = 240  # after which a process that waits says where it does, and ends

PROGRAM = """
import pickle, sys
import torch.multiprocessing as mp
work, arguments, count = pickle.loads(bytes.fromhex(sys.argv[1]))
kind = "fork" if sys.platform.startswith("linux") else "spawn"
if __name__ == "__main__":
    mp.start_processes(work, arguments, nprocs=count, start_method=kind)
"""


def in_two_processes(work: Any, folder: Path) -> list[Any]:
    """What ``work(rank)`` returns in each of two processes of one group."""
    return in_processes(work, folder, 2)


def in_processes(work: Any, folder: Path, count: int) -> list[Any]:
    """What ``work(rank)`` returns in each of ``count`` processes of one group."""
    words = pickle.dumps((join_and_work, (work, str(folder), count), count)).hex()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python(["-c", PROGRAM, words], env=environment)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt") for rank in range(count)]


def join_and_work(rank: int, work: Any, folder: str, count: int) -> None:
    """Join the other processes, by a file that all know, and save what ``work`` returns."""
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=SECONDS // 2)
    store = dist.FileStore(str(Path(folder) / "store"), count)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=patience)
    torch.save(work(rank), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()
