"""``python -m scorch plan`` predicts the bytes that real runs move, and explains what it expects."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import scorch
import scorch.distributed as sd
from processes import in_processes
from scorch._src.cli.main import main
from scorch._src.cli.plan import plan_graph
from scorch._src.distributed.cost_model.formulas import as_network
from scorch._src.distributed.cost_model.simulate import expect, simulate

FEATURES = 6


def write_graph(folder: Path) -> str:
    generator = torch.Generator().manual_seed(1)
    dense = torch.rand(50, 50, generator=generator) < 0.05
    dense[7] = True  # a hub
    path = str(folder / "graph.npz")
    scorch.save(path, scorch.from_torch(dense.float(), format="csr"))
    return path


def count_steps(rank: int, path: str, worlds: tuple[int, ...]) -> dict[str, int]:
    """The bytes that all processes receive in a step, by the number of processes and the algorithm."""
    S: Any = scorch.load(path)
    X = torch.rand(S.shape[1], FEATURES)
    counted = {}
    for world in worlds:
        group = dist.new_group(list(range(world)))
        if rank >= world:
            continue
        names = [("halo", None), ("rounds", None), ("features", None)]
        names += [("1.5d", c) for c in (2, 3, 4, 8) if world % c == 0]
        for algorithm, replicas in names:
            A = sd.shard(S, group, algorithm=algorithm, replicas=replicas)
            x = A.columns_of(X).clone().requires_grad_()
            (A @ x).sum().backward()
            with sd.count_bytes() as traffic:
                (A @ x).sum().backward()
            name = f"{algorithm}, {replicas} replicas" if replicas else algorithm
            counted[f"{world} {name}"] = traffic.received
    return counted


@pytest.mark.parametrize("worlds", [(2, 3, 4), pytest.param((8,), marks=pytest.mark.long)])
def test_predicted_bytes_are_those_of_real_runs(worlds, tmp_path):
    path = write_graph(tmp_path)
    counts = in_processes(functools.partial(count_steps, path=path, worlds=worlds), tmp_path, max(worlds))
    for world in worlds:
        plan = plan_graph(path, workers=world, features=[FEATURES])
        runs = [step for step in plan.steps if step.runs]
        assert len(runs) == 3 + sum(world % c == 0 for c in range(2, 9))
        for step in runs:
            received = [count[f"{world} {step.name}"] for count in counts[:world]]
            assert sum(received) == step.total, (world, step.name)
            assert max(received) <= step.bytes


def test_a_partition_is_counted_as_its_cuts_would_be(tmp_path, capsys):
    path = write_graph(tmp_path)
    cuts = [0, 10, 10, 50]
    (tmp_path / "cuts.txt").write_text("\n".join(map(str, cuts)))
    owners = torch.repeat_interleave(torch.arange(3), torch.tensor(cuts).diff())
    (tmp_path / "parts.txt").write_text("\n".join(map(str, owners.tolist())))
    by_cuts = plan_graph(path, workers=3, cuts=str(tmp_path / "cuts.txt"))
    by_parts = plan_graph(path, workers=3, partition=str(tmp_path / "parts.txt"))
    assert by_cuts.steps == by_parts.steps
    arguments = ["plan", path, "--workers", "3", "--cuts", "even", "--network", "100Gb", "--memory", "1"]
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert "fastest" in table and "all-gather" in table and "over 100Gb" in table
    assert main([*arguments, "--json"]) == 0
    words = json.loads(capsys.readouterr().out)
    assert words["best"] in [step["name"] for step in words["steps"]]
    assert main(["plan", path, "--workers", "3", "--network", "tin cans"]) == 2
    assert "10GbE" in capsys.readouterr().err


def test_degrees_let_expect_what_a_random_order_has():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(3000, (30000,), generator=generator)
    columns = (torch.rand(30000, generator=generator) ** 2 * 3000).long()  # of uneven degrees
    owners = torch.arange(3000) * 8 // 3000
    owners = owners[torch.randperm(3000, generator=generator)]
    degrees = [torch.bincount(index, minlength=3000) for index in (rows, columns)]
    for replicas in (1, 4):
        counted = simulate((rows, columns), owners, owners, 8, replicas).load
        expected = expect(degrees[0], degrees[1], 8, replicas)
        assert expected.moved == pytest.approx(counted.moved, rel=0.02)
        assert expected.entries == counted.entries


def test_networks_have_names_or_numbers():
    assert as_network("10gbe") == as_network("10GbE")
    assert as_network((1e-6, 2e9)).bandwidth == as_network("1us, 2GB/s").bandwidth == 2e9
    with pytest.raises(scorch.errors.ArgumentError, match="100Gb"):
        as_network("fast")
