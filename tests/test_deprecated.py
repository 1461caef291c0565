"""Names that users wrote before still work, and say which to use instead."""

from __future__ import annotations

import os
import warnings

import pytest
import torch

import scorch
import scorch.distributed
import scorch.utils.data
from fork_server import run_python
from scorch._src.namespace import DEPRECATED_NAMES
from scorch._src.ops.graph.neighbours import sum_neighbours
from scorch.settings import current, read_environment

OLD_NAMES = [(module, old, new) for module, names in DEPRECATED_NAMES.items() for old, new in names.items()]


@pytest.mark.parametrize(("module", "old", "new"), OLD_NAMES)
def test_a_name_of_before_is_that_of_now(module: str, old: str, new: str) -> None:
    owner = __import__(module, fromlist=["x"])
    with pytest.warns(DeprecationWarning, match=f"{module}.{old} is deprecated; use {new} instead") as caught:
        assert getattr(owner, old) is getattr(owner, new)
    assert caught[0].filename == __file__
    assert old not in owner.__all__ and new in owner.__all__


def test_settings_without() -> None:
    with pytest.warns(DeprecationWarning, match=r"\(without=\) is deprecated; use settings\(disable=\)"):
        changed = scorch.settings(without="order")
    with changed:
        assert current().disable == {"order"}


@pytest.mark.parametrize(("old", "new"), [("SCORCH_WITHOUT", "SCORCH_DISABLE"), ("SCORCH_CXX", "SCORCH_CC")])
def test_environment_variables_of_before(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(new, raising=False)
    monkeypatch.setenv(old, "something")
    with pytest.warns(DeprecationWarning, match=f"variable {old} is deprecated; use {new} instead"):
        assert read_environment(new) == (old, "something")
    monkeypatch.setenv(new, "other")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_environment(new) == (new, "other")


def test_an_old_variable_is_obeyed() -> None:
    program = "from scorch.settings import current; assert current().disable == {'tiles'}"
    run_python(["-c", program], env={**os.environ, "SCORCH_WITHOUT": "tiles"}, check=True, has="torch")


@pytest.mark.parametrize(
    ("variable", "value", "call"),
    [
        ("SCORCH_CXX", "no-such-compiler", "find_toolchain()"),
        ("SCORCH_WITHOUT", "everything", "import scorch"),
    ],
)
def test_errors_name_the_old_variable_that_is_set(variable: str, value: str, call: str) -> None:
    setup = "from scorch._src.backends.cpu.toolchain import find_toolchain"
    environment = {name: text for name, text in os.environ.items() if name != "SCORCH_CC"}
    done = run_python(["-c", f"{setup}; {call}"], env={**environment, variable: value}, has="torch")
    message = done.stderr.splitlines()[-1]
    assert f"{variable} " in message and repr(value) in message
    assert "SCORCH_CC" not in message and "SCORCH_DISABLE" not in message


def test_rigl_every_and_until() -> None:
    layer = scorch.nn.SparseLinear(8, 8, sparsity=0.5)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with pytest.warns(DeprecationWarning, match=r"RigL\((every|until)=\) is deprecated"):
        exchange = scorch.nn.RigL(layer, optimizer, every=3, until=9)
    assert (exchange.update_every, exchange.stop_step) == (3, 9)
    with pytest.warns(DeprecationWarning, match="use update_every"):
        assert exchange.every == 3


def test_over_neighbours_of_sharded_graphs() -> None:
    matrix = scorch.distributed.shard(scorch.eye(2, format="csr"))
    with pytest.warns(DeprecationWarning, match="over_neighbours is deprecated; use over_neighbors"):
        total = matrix.over_neighbours(sum_neighbours, (matrix, torch.ones(2, 1), 2), {})
    assert total.tolist() == [[1.0], [1.0]]
