"""Two processes that know each other, for tests of what is learned together."""

from __future__ import annotations

import os
import pickle
import socket
import sys
from pathlib import Path
from typing import Any

import torch

from fork_server import run_python

PROGRAM = """
import pickle, sys
import torch.multiprocessing as mp
work, arguments = pickle.loads(bytes.fromhex(sys.argv[1]))
kind = "fork" if sys.platform.startswith("linux") else "spawn"
if __name__ == "__main__":
    mp.start_processes(work, arguments, nprocs=2, start_method=kind)
"""


def in_two_processes(work: Any, folder: Path) -> list[Any]:
    """What ``work(rank, port, folder)`` saves as ``RANK.pt`` in each of two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = pickle.dumps((work, (port, str(folder)))).hex()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python(["-c", PROGRAM, words], env=environment)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]
