"""Processes that print a line before and after each thing they try; one that dies costs that thing only."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def environment(**more: str) -> dict[str, str]:
    """The variables of processes that import Scorch, ``benchmarks``, ``tools`` and the tests from here."""
    paths = [str(ROOT / "src"), str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


@dataclass
class Counts:
    """How many ended how, and some of those that did not pass."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: list[dict[str, str]] = field(default_factory=list)
    cut_short: bool = False
    most: int = 20  # examples of each outcome

    def add(self, outcome: str, what: str, message: str) -> None:
        self.counts[outcome] = self.counts.get(outcome, 0) + 1
        if outcome not in ("passed", "skipped") and self.counts[outcome] <= self.most:
            self.examples.append({"outcome": outcome, "what": what, "message": message})

    def merged(self, other: Counts) -> Counts:
        both = Counts(dict(self.counts), self.examples + other.examples, self.cut_short or other.cut_short)
        for outcome, number in other.counts.items():
            both.counts[outcome] = both.counts.get(outcome, 0) + number
        return both

    def packed(self) -> dict[str, Any]:
        return {"counts": self.counts, "examples": self.examples, "cut_short": self.cut_short}


def lines(
    command: Sequence[str], env: Mapping[str, str], silence: float, end: float
) -> Iterator[dict[str, Any]]:
    """What a process says, and at last how it ended: ``{"exit": code, "why": words}``.

    It is ended where it says nothing for ``silence`` seconds, and at the time ``end``.
    """
    process = subprocess.Popen(
        command, env=dict(env), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    heard: queue.Queue[str | None] = queue.Queue()
    errors: list[str] = []

    def listen(stream: Any, take: Callable[[Any], None], last: bool) -> None:
        for line in stream:
            take(line)
        if last:
            heard.put(None)

    threads = [
        threading.Thread(target=listen, args=(process.stdout, heard.put, True), daemon=True),
        threading.Thread(target=listen, args=(process.stderr, errors.append, False), daemon=True),
    ]
    for thread in threads:
        thread.start()
    why = ""
    try:
        while True:
            left = end - time.monotonic()
            try:
                line = heard.get(timeout=max(0.0, min(silence, left)))
            except queue.Empty:
                why = "out of time" if left <= silence else f"said nothing for {silence:.0f} seconds"
                break
            if line is None:
                break
            with contextlib.suppress(json.JSONDecodeError):
                if line.startswith("{"):
                    yield json.loads(line)
    finally:
        if why or process.poll() is None:
            _end(process)
    for thread, stream in zip(threads, (process.stdout, process.stderr), strict=True):
        thread.join(timeout=5)
        if stream is not None and not thread.is_alive():  # a process that it started may hold the other end
            stream.close()
    told = [line.strip() for line in errors if line.strip()]
    fatal = [line for line in told if line.startswith("Fatal")]
    yield {"exit": process.returncode, "why": why or next(iter([*fatal, *told[-1:]]), "")}


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=2)  # it may be ending by itself
    if process.poll() is None:
        process.kill()
        process.wait()


def count(
    command: Callable[[int, Counts], Sequence[str] | None],
    env: Mapping[str, str],
    silence: float,
    end: float,
    starts: int = 50,
    examples: int = 20,
) -> Counts:
    """Count what processes tell, starting another where one dies.

    ``command`` is asked for the words of each, given its number and what was counted; None: nothing is left.
    """
    found = Counts(most=examples)
    fruitless = 0
    for start in range(starts):
        words = command(start, found)
        if words is None:
            return found
        before = sum(found.counts.values())
        begun, is_done, last = None, False, {}
        for message in lines(words, env, silence, end):
            last = message
            if "begin" in message:
                begun = message["begin"]
            elif "end" in message:
                found.add(message["end"], begun or message.get("what", ""), message.get("message", ""))
                begun = None
            is_done = is_done or "done" in message
        if last.get("why") == "out of time":
            found.cut_short = True
            return found
        if begun is not None:
            found.add("crashed", begun, f"exit code {last.get('exit')}: {last.get('why', '')}"[:300])
        elif not is_done and last.get("exit") and sum(found.counts.values()) == before:
            fruitless += 1
            if fruitless == 2:
                found.add("crashed", "the process did not begin", str(last.get("why", ""))[:300])
                return found
        if is_done:
            return found
    return found


def python(*words: str) -> list[str]:
    return [sys.executable, *words]
