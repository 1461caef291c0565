"""Editors and type checkers see every name: the ``.pyi`` files are current, and a user's program checks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fork_server import run_python
from make_stubs import ROOT

PROGRAM = """
import scorch
import scorch as torch
import scorch.nn as nn
from scorch.nn import functional as F
from scorch.nn.utils import clip_grad_norm_
from scorch.optim import SGD
from scorch.optim.lr_scheduler import StepLR
from scorch.utils.data import DataLoader, Dataset
from scorch import linalg, sparse

A = scorch.rand(100, 100, density=0.1, format="csr")
reveal_type(A)
reveal_type(scorch.zeros(3, 3))
reveal_type(scorch.eye(3, format="coo", dtype=torch.float64))
reveal_type(scorch.sparse_coo_tensor([[0], [0]], [1.0], (2, 2)))
reveal_type(torch.relu(A @ torch.ones(100, 2)))
reveal_type(F.relu(A))
reveal_type(A.to_dense())
reveal_type(A.nnz)
reveal_type(torch.float32)
reveal_type(scorch.rand_like(A, density=0.5))
reveal_type(scorch.amax(A, 1, masked=True))
reveal_type(A.amax(1, masked=True))
reveal_type(scorch.nn.GCNConv(100, 2))
reveal_type(scorch.nn.functional.relu(A))
reveal_type(scorch.linalg.cg(A, torch.ones(100)))
reveal_type(scorch.distributed.shard(A).local)
reveal_type(scorch.formats.Level())


class Rows(Dataset[torch.Tensor]):
    def __getitem__(self, index: int) -> torch.Tensor:
        return A[index]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(100, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.log_softmax(self.linear(x), dim=1)


model = Model()
optimizer = SGD(model.parameters(), lr=0.1)
scheduler = StepLR(optimizer, 3)
loader = DataLoader(Rows(), batch_size=2)
clip_grad_norm_(model.parameters(), 1.0)
size: int = A.format.dims
norm = linalg.vector_norm(A)
product = sparse.mm(A, torch.ones(100, 3))
"""
REVEALED = [
    "SparseTensor",
    "Tensor",
    "SparseTensor",
    "SparseTensor",
    "Tensor",
    "Tensor",
    "Tensor",
    "int",
    "dtype",
    "SparseTensor",
    "Tensor",
    "Tensor",
    "GCNConv",
    "Tensor",
    "Tensor",
    "SparseTensor",
    "Level",
]
WRONG = """
import scorch
scorch.no_such_name(3)
scorch.eye(3, format="csr").no_such_method()
scorch.rand(3, density="much")
size: int = scorch.zeros(3, format="csr").format
"""


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_stubs_are_current():
    script = Path(__file__).with_name("make_stubs.py")
    run = run_python(["-W", "ignore", script, "--print"], has="torch")
    assert run.returncode == 0, run.stderr
    found = {Path(path): text for path, text in json.loads(run.stdout).items()}
    noted = next(iter(found.values())).split("\n")[0]
    if (ROOT / "__init__.pyi").read_text().split("\n")[0] != noted:
        pytest.skip(f"the stubs were made for another torch than {torch.__version__}")
    for path, text in found.items():
        assert path.read_text() == text, f"{path} is old: run python tests/make_stubs.py"
    for path in ROOT.rglob("*.pyi"):
        assert path in found, f"{path} is not made any more: delete it"


@pytest.fixture(scope="module")
def messages(tmp_path_factory) -> dict[str, list[str]]:
    """What mypy says of both programs, with the settings of this project.

    So it reads what the check before the tests has noted about torch, which takes most of a minute.
    """
    pytest.importorskip("mypy", reason="mypy is not installed")
    path: Path = tmp_path_factory.mktemp("programs")
    for name, program in (("right", PROGRAM), ("wrong", WRONG)):  # mypy caches messages by text
        (path / f"{name}.py").write_text(f"{program}\n# in {path}\n")
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--show-absolute-path", path / "right.py", path / "wrong.py"],
        capture_output=True,
        text=True,
        cwd=ROOT.parents[1],
        env={"PATH": ""},
    )
    assert run.returncode == 1, run.stdout + run.stderr
    lines = [line.removeprefix(f"{path}/") for line in run.stdout.splitlines()]
    return {name: [line for line in lines if line.startswith(name)] for name in ("right", "wrong")}


def test_a_program_checks(messages):
    lines = messages["right"]
    assert not [line for line in lines if "error:" in line], "\n".join(lines)
    revealed = [line.partition("Revealed type is ")[2].strip('"') for line in lines]
    assert [name.rpartition(".")[2] for name in revealed] == REVEALED


def test_mistakes_are_seen(messages):
    lines = messages["wrong"]
    assert [int(line.split(":")[1]) for line in lines if "error:" in line] == [3, 4, 5, 6], "\n".join(lines)
