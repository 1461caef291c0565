"""Processes that try operators: one that dies or hangs costs one call, and another goes on after it."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from tools.what_works.cases import Case, cases, samples_of
from tools.what_works.check import Outcome, check
from tools.what_works.operators import DTYPES, FORMATS, VARIANTS, all_operators

BROKEN = 3  # how a process ends whose GPU answers no more


@dataclass(frozen=True)
class Task:
    """An operator with one dtype, from its call number ``start`` on."""

    operator: str
    dtype: str
    formats: tuple[str, ...]
    samples: int
    start: int = 0
    device: str = "cpu"


@dataclass(frozen=True)
class Call:
    """One call that was tried."""

    operator: str
    dtype: str
    variant: str
    format: str
    outcome: Outcome


def calls(task: Task, infos: Sequence[Any]) -> Iterator[tuple[int, str, str, Case]]:
    """Number, variant, format and arguments of each call."""
    number = 0
    samples = samples_of(infos, DTYPES[task.dtype])
    for variant in VARIANTS:
        for format in task.formats:
            least_order = 3 if format == "csf" else 1
            turn = list(DTYPES).index(task.dtype) * len(FORMATS) + FORMATS.index(format)
            for case in cases(samples, variant, task.samples, least_order, turn):
                yield number, variant, format, case.on(task.device)
                number += 1


def _serve(connection: Connection, known: dict[str, list[Any]] | None) -> None:
    """Try the operators that the other end names, and tell it before and after each call."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    operators = all_operators() if known is None else known
    while (task := connection.recv()) is not None:
        for number, variant, format, case in calls(task, operators[task.operator]):
            if number >= task.start:
                connection.send(("begin", number, variant, format))
                outcome = check(case, format)
                if is_broken(task.device):
                    os._exit(BROKEN)
                connection.send(("end", number, variant, format, outcome))
        connection.send(("done",))


def is_broken(device: str) -> bool:
    """Whether a kernel has failed, after which the process can do nothing more with its GPU."""
    if not device.startswith("cuda"):
        return False
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


class _Worker:
    def __init__(self, operators: dict[str, list[Any]], device: str) -> None:
        # A process that has asked for GPUs, as reading torch's samples does, cannot fork one that uses them.
        forks = device == "cpu"
        context: Any = multiprocessing.get_context("fork" if forks else "spawn")
        self.connection, other = context.Pipe()
        given = (other, operators if forks else None)
        self.process: BaseProcess = context.Process(target=_serve, args=given, daemon=True)
        self.process.start()
        other.close()
        self.task: Task | None = None
        self.begun: tuple[int, str, str] | None = None
        self.heard = time.monotonic()

    def give(self, task: Task | None) -> None:
        self.task, self.begun, self.heard = task, None, time.monotonic()
        self.connection.send(task)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def run(
    operators: dict[str, list[Any]], tasks: Sequence[Task], jobs: int, limit: float
) -> Iterator[Call | Task]:
    """Every call of ``tasks``, and each task when it is done; a call may take ``limit`` seconds."""
    left = deque(tasks)
    device = tasks[0].device if tasks else "cpu"
    workers = [_Worker(operators, device) for _ in range(min(jobs, len(tasks)))]
    try:
        for worker in workers:
            worker.give(left.popleft())
        while any(worker.task for worker in workers):
            busy = {worker.connection: worker for worker in workers if worker.task}
            ready = set(wait(list(busy), timeout=1.0))
            for connection, worker in busy.items():
                if connection in ready:
                    yield from _hear(worker, left)
                elif time.monotonic() - worker.heard > limit:
                    yield from _lost(worker, left, "too slow", f"more than {limit:.0f} seconds")
                if not worker.process.is_alive() and worker.task is None and left:
                    workers[workers.index(worker)] = fresh = _Worker(operators, device)
                    fresh.give(left.popleft())
    finally:
        for worker in workers:
            worker.end()


def _hear(worker: _Worker, left: deque[Task]) -> Iterator[Call | Task]:
    task = worker.task
    assert task is not None
    try:
        message = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join()
        yield from _lost(worker, left, "crashed", f"the process ended with code {worker.process.exitcode}")
        return
    worker.heard = time.monotonic()
    if message[0] == "begin":
        worker.begun = message[1:]
    elif message[0] == "end":
        worker.begun = None
        _, _, variant, format, outcome = message
        if outcome is not None:
            yield Call(task.operator, task.dtype, variant, format, outcome)
    else:
        yield task
        worker.task = None
        if left:
            worker.give(left.popleft())


def _lost(worker: _Worker, left: deque[Task], kind: str, message: str) -> Iterator[Call | Task]:
    """What becomes of the task of a process that is gone: the call under way is lost, the rest goes on."""
    task = worker.task
    assert task is not None
    if worker.begun is None:  # between two calls, where samples are drawn
        yield Call(task.operator, task.dtype, "first", task.formats[0], Outcome(kind, message))
        yield task
    else:
        number, variant, format = worker.begun
        yield Call(task.operator, task.dtype, variant, format, Outcome(kind, message))
        left.appendleft(replace(task, start=number + 1))
    worker.task = None
    worker.end()
