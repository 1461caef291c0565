"""Models with sparse tensors through ``torch.export``, saved and loaded again."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import scorch
from fork_server import run_python
from scorch._src.compile.capture.program import deserialize, find_function, name_of, serialize
from scorch._src.tensor.autograd import sparse_of
from scorch.errors import UnsupportedError
from torch_has import needs_export_of_sparse_arguments


class Model(nn.Module):
    """A sparse buffer, a sparse weight of values that are a parameter, and attention."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("A", scorch.rand(6, 6, density=0.4, format="csr"))
        self.register_buffer("mask", scorch.from_torch(torch.eye(6) > 0, format="csr"))
        weight: Any = scorch.rand(4, 5, density=0.5, format="csr")
        self.pattern, self.values = weight.storage.pattern, nn.Parameter(weight.values())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.linear(self.A @ x, sparse_of(self.pattern, self.values))
        return F.scaled_dot_product_attention(h, h, h, attn_mask=self.mask)


@pytest.fixture(autouse=True)
def forget_graphs() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_model_is_saved_and_loaded(strict: bool) -> None:
    model, x = Model(), torch.randn(6, 5)
    program = torch.export.export(model, (x,), strict=strict)
    torch.testing.assert_close(program.module()(x), model(x))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(x), model(x))


@needs_export_of_sparse_arguments
def test_a_sparse_argument_and_a_batch_of_any_size() -> None:
    class Product(nn.Module):
        def forward(self, A: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(F.linear(x, A))

    A, batch = scorch.rand(6, 5, density=0.4, format="csr"), torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Product(), (A, torch.randn(3, 5)), dynamic_shapes=(None, {0: batch}))
    for size in (3, 7):
        x = torch.randn(size, 5)
        torch.testing.assert_close(program.module()(A, x), torch.relu(F.linear(x, A)))


class Learned(nn.Module):
    """Parameters that are sparse tensors themselves."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.weight = nn.Parameter(scorch.randn(7, 5, density=0.4, format="csr"))
        self.other = nn.Parameter(scorch.randn(3, 7, density=0.5, format="coo"))
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(torch.relu(x @ self.weight.t()), self.other, self.bias)


@pytest.mark.parametrize("strict", [False, True])
def test_sparse_parameters_reach_another_process(tmp_path: Path, strict: bool) -> None:
    model, x = Learned(), torch.randn(6, 5)
    torch.export.save(torch.export.export(model, (x,), strict=strict), tmp_path / "model.pt2")
    torch.save((x, model(x)), tmp_path / "numbers.pt")
    program = f"""
import torch, scorch
x, wanted = torch.load({str(tmp_path / "numbers.pt")!r})
torch.testing.assert_close(torch.export.load({str(tmp_path / "model.pt2")!r}).module()(x), wanted)
print("same")
"""
    run = run_python(["-W", "ignore", "-c", program])
    assert run.stdout.strip() == "same", run.stderr


@pytest.mark.long
def test_a_process_without_scorch_is_told_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(Model(), (torch.randn(6, 5),)), path)
    program = f"import sys; sys.modules['scorch'] = None; import torch; torch.export.load({str(path)!r})"
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode != 0
    assert "scorch" in run.stderr.splitlines()[-1]


def test_arguments_are_read_as_they_were_written() -> None:
    given = ([1, 2.5, None], slice(1, None), ..., torch.float32, {"dim": (0, "x")}, 1j, scorch.Format("csc"))
    assert deserialize(serialize(given)) == given


def test_functions_are_found_by_their_names() -> None:
    for function in (torch.matmul, torch.Tensor.mul, F.linear, torch.sparse.mm, torch.ops.aten.add.Tensor):
        assert find_function(name_of(function)) is function
    for name in ("os.system", "torch.load", "torch.os.system"):
        with pytest.raises(UnsupportedError, match="not a function on sparse tensors"):
            find_function(name)
