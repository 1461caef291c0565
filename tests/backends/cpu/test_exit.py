"""Processes that ran kernels end well, in whatever order Python takes them apart."""

import subprocess
import sys

import pytest

from torch_has import needs_builtins

SCRIPT = """
import ctypes, gc, torch, scorch
from scorch._src.backends.cpu import invoke, launch
S = scorch.from_torch(torch.eye(40), format="csr")
scorch.einsum("ij,jk->ik", S, torch.ones(40, 8))
assert launch.builtins() is not None
# what the builtins point to must outlive these modules: the hooks of fork are freed after all of them
for module in (launch, invoke):
    vars(module).clear()
gc.collect()
junk = [(ctypes.c_uint64 * 4)(*[2**64 - 1] * 4) for _ in range(20_000)]  # where they were
"""


@pytest.mark.long
@needs_builtins
def test_builtins_may_be_freed_last():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
