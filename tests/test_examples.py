"""The examples run, in small, and say and draw what they promise."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

from fork_server import run_python

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SAYS = {  # what each prints: that it was compared with something else, and what its table is about
    "bigbird": ["sparse and dense attention agree", "dense, masked"],
    "distributed_gcn": ["on rank 0 of 1", "accuracy", "bytes per epoch"],
    "first_steps": ["same as dense", "W.grad"],
    "formats_drawn": ["dimension 0 compressed", "the product with a vector is the same in all of them"],
    "gat": ["synthetic graph of Cora's size, not Cora", "they agree with the layer"],
    "gcn_cora": [
        "synthetic graph of Cora's size, not Cora",
        "both networks agree before training",
        "torch.sparse",
    ],
    "matrix_market_scipy": ["to SciPy and back", "the same matrix", "scorch.linalg.cg"],
    "mixture_of_experts": ["agrees with running all experts", "two of them"],
    "new_level_format": ["agree with dense PyTorch"],
    "prune_mlp": ["synthetic seven-segment digits, not MNIST", "agree with dense ones", "sparse layers"],
    "reading_explain": ["transposed to csr", "all results agree with dense PyTorch"],
    "rigl_mnist": ["synthetic seven-segment digits, not MNIST", "per step"],
    "sddmm_fused": ["all implementations agree", "one kernel: mul, relu, matmul"],
    "sparse_autoencoder": ["synthetic seven-segment digits, not MNIST", "16 of 256"],
}
DATA = {  # where an example looks in the folder of --data
    "gat": "planetoid/cora.npz",
    "gcn_cora": "planetoid/cora.npz",
    "matrix_market_scipy": "suitesparse/bcsstk16.mtx.gz",
    "prune_mlp": "images/mnist.npz",
    "rigl_mnist": "images/mnist.npz",
    "sparse_autoencoder": "images/mnist.npz",
}


def run(script: Path, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "MPLBACKEND": "Agg"}
    return run_python([script, *arguments], cwd=cwd, env=environment)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example(script: Path, tmp_path: Path) -> None:
    text = script.read_text()
    if "matplotlib" in text:
        pytest.importorskip("matplotlib")
    if "scipy" in text:
        pytest.importorskip("scipy")
    picture = tmp_path / "picture.png"
    arguments = ["--plot", picture] if "--plot" in text else []
    done = run(script, "--quick", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    for words in SAYS[script.stem]:
        assert words in done.stdout
    if script.stem == "gcn_cora":  # a seventh would be chance
        found = re.search(r"scorch +[0-9.]+ +([0-9.]+)%", done.stdout)
        assert found is not None and float(found[1]) > 20  # one class of seven is 14
    assert not arguments or picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_examples_have_the_form_of_the_gallery(script: Path) -> None:
    text = script.read_text()
    title, line, *_ = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    assert re.fullmatch("=+", line) and len(line) == len(title)
    assert f"python examples/{script.name}" in text and "# %%" in text and "--quick" in text
    assert ("--data" in text) == (script.stem in DATA)
    assert len(text.splitlines()) <= 150


@pytest.mark.parametrize("name", ["gcn_cora", "matrix_market_scipy"])
def test_a_folder_without_the_data_is_an_error(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run(ROOT / "examples" / f"{name}.py", "--quick", "--data", tmp_path, cwd=tmp_path)
    assert done.returncode != 0 and DATA[name] in done.stderr
