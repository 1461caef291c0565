"""``run_python`` does what ``subprocess.run`` does with the same words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fork_server
from fork_server import run_python

needs_forks = pytest.mark.skipif(not fork_server.CAN_FORK, reason="real processes are started here")
PROGRAM = "import os, sys; print(sys.argv[1:], __name__, os.getcwd(), os.environ.get('WORD'))"


@pytest.mark.parametrize(
    "words",
    [
        ["-c", PROGRAM, "a", "b"],
        ["script.py", "a"],
        ["-m", "script", "a"],
        ["-c", "import sys; sys.exit(3)"],
        ["-c", "import sys; sys.exit('wrong')"],
        ["-c", "import atexit; atexit.register(print, 'last'); print('first')"],
        ["-c", "import threading; threading.Timer(0.05, print, ['later']).start()"],
        ["-c", "import os; os.kill(os.getpid(), 9)"],
        ["-W", "ignore", "-c", "import warnings; warnings.warn('quiet')"],
    ],
)
def test_it_is_as_a_real_process(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(PROGRAM)
    environment = {**os.environ, "WORD": "said"}
    command = [sys.executable, *words]
    real = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    found = run_python(words, cwd=tmp_path, env=environment)
    assert (found.returncode, found.stdout, found.stderr) == (real.returncode, real.stdout, real.stderr)


def test_what_is_raised_is_told() -> None:
    done = run_python(["-c", "1 / 0"])
    assert done.returncode == 1 and done.stderr.endswith("ZeroDivisionError: division by zero\n")
    with pytest.raises(subprocess.CalledProcessError):
        run_python(["-c", "1 / 0"], check=True)


@needs_forks
def test_torch_is_there_and_nothing_was_computed() -> None:
    program = "import os, sys; print('scorch' in sys.modules, len(os.listdir('/proc/self/task')))"
    assert run_python(["-c", program]).stdout == "True 1\n"
    program = program.replace("'scorch' in", "'torch' in sys.modules, 'scorch' in")
    assert run_python(["-c", program], has="torch").stdout == "True False 1\n"


@needs_forks
def test_one_process_leaves_nothing_to_the_next() -> None:
    run_python(["-c", "import builtins, torch; builtins.left = torch.left = 1"])
    program = "import builtins, torch; print(hasattr(builtins, 'left'), hasattr(torch, 'left'))"
    assert run_python(["-c", program]).stdout == "False False\n"


def test_what_must_be_known_early_makes_a_real_process() -> None:
    program = "import sys; print('torch' in sys.modules)"
    assert run_python(["-c", program], env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout == "False\n"
    assert run_python(["-I", "-c", program]).stdout == "False\n"


@needs_forks
def test_too_long_is_an_error() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_python(["-c", "import time; time.sleep(60)"], timeout=1)
