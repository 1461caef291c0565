"""On a machine without a compiler the first things that people try work, with one warning."""

from __future__ import annotations

import os
from pathlib import Path

from fork_server import run_python

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys, warnings
sys.modules["ziglang"] = None
from pathlib import Path
import pages

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch, scorch
    from scorch._src.backends.cpu import jit, toolchain

    I = scorch.eye(5, format="csr")
    dense = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
    for form in ("csr", "coo", "bsr(1,3)"):
        S = scorch.from_torch(dense, format=form)
        checks = {
            "printing": (f"shape=(2, 3)" in repr(S), True),
            "conversion": (S.to_format("coo").to_dense(), dense),
            "matrix-vector": (S @ torch.ones(3), dense @ torch.ones(3)),
            "matrix-matrix": (S @ torch.ones(3, 4), dense @ torch.ones(3, 4)),
            "sparse-sparse": ((S @ S.T).to_dense(), dense @ dense.T),
            "sum": (S + S, dense + dense),
            "product": (S * S, dense * dense),
            "difference": (S - 2 * S, -dense),
            "relu": (torch.relu(S - 3 * S), torch.relu(-2 * dense)),
            "with dense": (S * dense.exp(), dense * dense.exp()),
            "total": (S.sum(), dense.sum()),
            "rows": (S.sum(1), dense.sum(1)),
            "largest": (S.amax(0), dense.amax(0)),
            "transpose": (S.T, dense.T),
            "slice": (S[:, 1:], dense[:, 1:]),
            "concatenation": (torch.cat([S, S], 1), torch.cat([dense, dense], 1)),
            "stacked": (torch.cat([S, S]), torch.cat([dense, dense])),
            "einsum": (scorch.einsum("ij,ij->j", S, S), (dense * dense).sum(0)),
            "evaluate": (scorch.evaluate("y[i] = sum(j, A[i,j] * A[i,j])", A=S), (dense * dense).sum(1)),
            "softmax": (S.softmax(1), dense.softmax(1)),
        }
        for name, (found, wanted) in checks.items():
            found = found.to_dense() if isinstance(found, scorch.SparseTensor) else found
            if isinstance(wanted, torch.Tensor):
                torch.testing.assert_close(found, wanted, msg=lambda text: f"{name} of {form}: {text}")
            else:
                assert found == wanted, (name, form)
    W = scorch.from_torch(dense, format="csr").requires_grad_()
    (W @ torch.ones(3, 2)).pow(2).sum().backward()
    D = dense.clone().requires_grad_()
    (D @ torch.ones(3, 2)).pow(2).sum().backward()
    assert torch.equal(W.grad.to_dense(), torch.where(dense != 0, D.grad, 0.0))

    layer = scorch.sparsify(torch.nn.Sequential(torch.nn.Linear(8, 8)), sparsity=0.5)
    layer(torch.rand(3, 8)).sum().backward()

    for page in sys.argv[1:]:
        message = pages.run_page(Path(page))
        assert not message, message

assert jit._libraries == {} and not toolchain.has_compiler()
said = [str(w.message) for w in caught if w.category.__name__ == "ScorchWarning"]
assert len(said) == 1, said
for cure in ("apt install gcc", "pip install ziglang", "SCORCH_CC"):
    assert cure in said[0]
print("all is well")
"""


def test_first_minute_needs_no_compiler(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (tmp_path / "readme.md").write_text(readme[: readme.index("python3 start.py")].rpartition("```sh")[0])
    guide = [ROOT / "docs" / "guide" / f"{name}.md" for name in ("install", "first-steps")]
    (tmp_path / "bin").mkdir()
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    environment = {**os.environ, "PATH": str(tmp_path / "bin"), "PYTHONPATH": paths, "PYTHONUTF8": "1"}
    environment["SCORCH_CACHE_DIR"] = str(tmp_path / "kernels")
    environment.pop("SCORCH_CC", None)
    words = ["-c", PROGRAM, tmp_path / "readme.md", *guide]
    done = run_python(words, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "all is well"
    assert not list((tmp_path / "kernels").glob("*.so"))
