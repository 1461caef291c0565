"""Two processes that know each other, for tests of what is learned together."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp


def in_two_processes(work: Any, folder: Path) -> list[Any]:
    """What ``work(rank, port, folder)`` saves as ``RANK.pt`` in each of two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (port, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]
