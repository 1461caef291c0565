"""A process that ends, is late or has another pattern: all others say so, and a restart goes on."""

from __future__ import annotations

import json
import os
import sys

import torch

from fork_server import run_python


def test_processes_tell_what_happened_and_a_restart_continues_from_the_checkpoint(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python(["-m", "distributed.restart", str(tmp_path)], env=environment)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert [found["error"] for found in told["undisturbed"]] == ["", "", ""], told["undisturbed"]
    assert told["disturbed"][1] == {"killed": "-9"}
    for rank in (0, 2):
        assert told["disturbed"][rank]["error"] == "CommunicationError", told["disturbed"]
        assert "load the last checkpoint" in told["disturbed"][rank]["message"]
        assert f"among 3 ranks failed on rank {rank}" in told["disturbed"][rank]["message"]
    assert [found["error"] for found in told["restarted"]] == ["", "", ""], told["restarted"]
    for rank in range(3):
        begin, wanted = torch.load(tmp_path / "undisturbed" / f"{rank}.pt")
        continued, found = torch.load(tmp_path / "disturbed" / f"{rank}.pt")
        assert (begin, continued) == (0, 2)
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert {found["error"] for found in told["late"]} == {"CommunicationError"}, told["late"]
    for found in told["differing"]:
        assert found["error"] == "CommunicationError" and "rank 1 has a tensor" in found["message"], found
