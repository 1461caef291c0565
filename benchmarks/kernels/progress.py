"""A bar on stderr; where that is no terminal, a line now and then."""

from __future__ import annotations

import sys
import time

SILENCE = 15.0  # seconds between lines


class Progress:
    def __init__(self, total: float) -> None:
        self.total, self.done = max(total, 1e-9), 0.0
        self.start = time.perf_counter()
        self.shown = -SILENCE
        self.is_terminal = sys.stderr.isatty()

    def advance(self, amount: float, what: str) -> None:
        self.done += amount
        share = min(1.0, self.done / self.total)
        elapsed = time.perf_counter() - self.start
        left = elapsed / share - elapsed if share > 0 else 0.0
        text = f"{share:4.0%}  {_clock(elapsed)} gone, {_clock(left)} left  {what}"
        if self.is_terminal:
            bar = "#" * int(30 * share)
            print(f"\r[{bar:<30}] {text:<70.70}", end="", file=sys.stderr, flush=True)
        elif elapsed - self.shown > SILENCE:
            self.shown = elapsed
            print(text, file=sys.stderr, flush=True)

    def finish(self) -> None:
        if self.is_terminal:
            print(file=sys.stderr)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
