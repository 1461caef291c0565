"""A plugin of pytest, ``-p tools.gpu_check.watch``, that tells of each test as it begins and as it ends.

The tests that the file in ``GPU_CHECK_DONE`` names are left out: another process has begun them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tools.what_works.workers import BROKEN, is_broken

_out = os.dup(1)  # from here on pytest captures what tests print
_outcomes: dict[str, tuple[str, str]] = {}


def _say(**words: Any) -> None:
    os.write(_out, f"\n{json.dumps(words)}\n".encode())  # pytest's own dots may stand before it


def pytest_collection_modifyitems(items: list[Any]) -> None:
    path = os.environ.get("GPU_CHECK_DONE")
    done = set(Path(path).read_text().splitlines()) if path and Path(path).exists() else set()
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_runtest_logstart(nodeid: str) -> None:
    _say(begin=nodeid)
    path = os.environ.get("GPU_CHECK_DONE")
    if path:
        with open(path, "a") as file:
            print(nodeid, file=file)


def pytest_runtest_logreport(report: Any) -> None:
    if report.failed or report.skipped or report.when == "call":
        kind = "failed" if report.failed else "skipped" if report.skipped else "passed"
        message = ""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = " ".join(str(crash.message if crash else report.longrepr).split())[:300]
        if _outcomes.get(report.nodeid, ("", ""))[0] != "failed":
            _outcomes[report.nodeid] = kind, message


def pytest_runtest_logfinish(nodeid: str) -> None:
    kind, message = _outcomes.pop(nodeid, ("passed", ""))
    device = os.environ.get("GPU_CHECK_DEVICE", "cpu")
    if kind == "failed" and is_broken(device):
        _say(end="crashed", message=message)
        os._exit(BROKEN)
    _say(end=kind, message=message)


def pytest_sessionfinish() -> None:
    _say(done=True)
