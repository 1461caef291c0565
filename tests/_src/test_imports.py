"""Imports stand at the top of a file, where import-linter and readers see them; others have a reason."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fork_server import run_python
from scorch._src import torch_internals
from scorch._src.tensor.hooks import Hooks, hooks

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "scorch"
MOST_FILES = 24  # in a folder


def deferred(path: Path) -> Iterator[tuple[str, str]]:
    """Modules of Scorch, and names of them, that functions of a file import when they are called."""
    text = path.read_text(encoding="utf-8")
    if not re.search(r"[^\n](import|from)\s+scorch", text):  # where none is indented, no function has one
        return
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    yield from ((name.name, "") for name in node.names if name.name.startswith("scorch"))
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("scorch"):
                    yield from ((node.module or "", name.name) for name in node.names)


FILES = sorted(SOURCE.rglob("*.py"))


def test_packages_hold_source_files_alone() -> None:
    """And no copies that a merge or an editor left behind."""
    kinds = {".py", ".pyi", ".c", ".cu", ".typed"}
    others = [path for path in SOURCE.rglob("*") if path.is_file() and path.suffix not in kinds | {".pyc"}]
    assert others == []


def test_functions_import_only_what_is_slow_to_import():
    """Names of torch whose modules take long, or that some versions lack: ``torch_internals`` lists them."""
    slow = {*torch_internals.LAZY, *torch_internals.OPTIONAL}
    found = [(str(path), *use) for path in FILES for use in deferred(path) if use[1] not in slow]
    assert found == []


def test_every_call_that_points_up_is_put_in():
    assert sorted(vars(hooks)) == sorted(Hooks.__annotations__)


REGISTERS = re.compile(r"^@?(implements\w*|_?register\w*|torch\.library\.\w+|\w+\.install)\(", re.M)


def test_importing_scorch_registers_everything():
    """Hooks and handlers are there for those who import nothing but ``scorch``, too."""
    registering = {path for path in FILES if REGISTERS.search(path.read_text(encoding="utf-8"))}
    names = [path.relative_to(SOURCE.parent).with_suffix("").parts for path in sorted(registering)]
    modules = [".".join(parts).removesuffix(".__init__") for parts in names]
    program = f"import sys, scorch; print([name for name in {modules} if name not in sys.modules])"
    run = run_python(["-W", "ignore", "-c", program], has="torch")
    assert len(modules) > 20 and run.stdout.strip() == "[]", run.stdout + run.stderr


def test_folders_are_small():
    folders = {path.parent for path in FILES}
    large = {str(folder.relative_to(SOURCE)): len([*folder.glob("*.py")]) for folder in folders}
    assert {name: count for name, count in large.items() if count > MOST_FILES} == {}


TOP = """
.ci .github .gitignore .pre-commit-config.yaml CHANGELOG.md CITATION.cff CODE_OF_CONDUCT.md CONTRIBUTING.md
LICENSE README.md SECURITY.md benchmarks conda docs examples notebooks pyproject.toml src start.py tests tools
"""


def test_nothing_else_lies_at_the_top_of_the_repository():
    """Such as kernel caches in folders of which a test or a user has made up the names."""
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("no checkout of git")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    names = {os.fsdecode(name).partition("/")[0] for name in listed.split(b"\0") if name}
    assert names - {*TOP.split()} == set()


COMMON_CALLS = """
A * 2; A / 2; -A; A + A; A - A; A * A; A * d; d * A; A + d; A / d; A + 1; A @ x; A @ A; d @ A; A ** 2
A.abs(); A.T; A.t(); A.sum(); A.sum(1); A.mean(); A.mean(1); A.max(); A.min(); A.amax(1); A.argmax(1)
A.norm(); A.std(); A.var(); A.prod(); A.any(); A.all(); A.cumsum(1); A.median(); A.count_nonzero()
A.nonzero(); A[3]; A[3, 4]; A[1:3]; A[:, 2]; A[:2, 3:]; A[torch.tensor([1, 2])]
A.index_select(0, torch.tensor([1])); A.diagonal(); A.tril(); A.triu(); A.unbind(); torch.cat([A, A])
torch.relu(A); torch.sin(A); A.sqrt(); A.square(); A.pow(2); A.exp(); A.log1p(); A.log(); A.cos(); A.tanh()
A.sigmoid(); A.clamp(0, 1); A.clamp(min=0); A.round(); A.floor(); A.sign(); A.neg(); A.div(2); A.mul(2)
A.add(A); torch.softmax(A, 1); A > 0; A == 0; A != 0; A.eq(A); A.lt(1); A.isnan()
torch.where(A > 0.5, A, A); A.masked_fill(d > 0.5, 0.0); A.lerp(A, 0.5); torch.maximum(A, A)
torch.minimum(A, A); A.addcmul(A, A); torch.mm(A, x); torch.matmul(A, x); torch.addmm(x, A, x)
torch.einsum("ij,jk->ik", A, x); F.linear(x.T, A); F.gelu(A); F.dropout(A, 0.5); A.clone(); A.detach()
A.to_dense(); A.tolist(); A.shape; A.numel(); A.values(); A.grad; A.float(); A.cpu(); A.contiguous()
A.coalesce(); A.crow_indices(); A.col_indices(); A.to_sparse_csr(); A.to_sparse_coo(); A.transpose(0, 1)
A.unsqueeze(0); A.squeeze(); torch.zeros_like(A); repr(A); A.permute(1, 0); A.view(256); A.expand(2, 16, 16)
A.to(torch.float64); A.double(); A.int(); A.bool(); A.requires_grad_()
scorch.nn.SparseLinear(16, 4)(d); torch.autograd.grad((A @ x).sum(), A)
L.sum().backward(); (L @ x).sum().backward(); (L * 2).sum().backward(); torch.relu(L).sum().backward()
(L * L).sum().backward(); (L + L).sum().backward(); (L - 2).sum().backward(); L.grad.mul_(2); B.mul_(2)
B.add_(B); B.neg_(); B.clamp_(min=0); B.relu_(); B += B; B *= 2; B /= 2; B -= B; B.copy_(d); B.abs_()
B[1] = 0; B[1, 2] = 3.0; B.fill_(0); B.zero_(); B.reshape(8, 32); B.flatten(); B.view(8, 32); B.ravel()
B.split(4); B.chunk(2); torch.stack([B, B]); torch.hstack([B, B]); torch.vstack([B, B]); B.roll(1, 0)
B.flip(0); B.topk(2); B.sort(); B.argsort(); B.repeat(2, 1); B.tile(2); B.narrow(0, 1, 3); B.select(0, 1)
B.select(1, 1); B.movedim(0, 1); B.swapaxes(0, 1); B.mT; B.adjoint(); B.unflatten(0, (4, 4))
torch.broadcast_to(B, (2, 16, 16)); B.gather(1, one); B.scatter(1, one, 1.0); B.masked_select(d > 0.5)
torch.take(B, torch.tensor([1, 2])); B.trace(); B.diag(); B.diag_embed(); torch.kron(B[:2, :2], B[:2, :2])
F.pad(B, (1, 1)); B.diff(); B.fliplr(); B.amin(1); B.argmin(1); B.max(1); B.cumprod(1); B.norm(dim=1)
torch.linalg.norm(B); B.mode(); B.unique(); B.aminmax(); torch.allclose(B, B); torch.isclose(B, B)
B.equal(B); B.isfinite(); B.logical_and(B); ~(B > 0); (B > 0) & (B > 0); 2 - B; B // 2; 2 ** B; 1 / B; B % 2
B.type(torch.float64); F.normalize(B); F.cosine_similarity(B, B); F.layer_norm(B, (16,))
F.embedding(torch.tensor([1, 2]), B); torch.sparse.softmax(B, 1); torch.cdist(B, B)
mask = masks.window(16, 2) | masks.global_tokens(16, 1); masks.causal(16) & mask
heads = torch.rand(1, 2, 16, 4, requires_grad=True)
F.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask).sum().backward()
scorch.nn.MultiheadAttention(16, 2)(x, x, x, pairs=mask); scorch.topk_sparse(x, 2) @ x
torch.allclose(B, B[:1])
B.index_add(0, torch.tensor([1]), B[:1]); B.tensor_split(2); torch.atleast_3d(B); torch.meshgrid(B[0], B[1])
torch.block_diag(B, x, x[0]); torch.cat([B, x.double()]); refuse(torch.cat, [B, x[:, 1:]])
refuse(torch.stack, [B, x[1:]]); refuse(torch.cat, [B, B], 2); refuse(torch.block_diag, B, x[None])
"""


def test_common_calls_import_neither_sympy_nor_distributed_tensors_nor_the_compiler_of_torch():
    program = f"""
import sys, torch, scorch
import torch.nn.functional as F
from scorch.nn import masks
torch.manual_seed(0)
d, x = torch.rand(16, 16) * (torch.rand(16, 16) < 0.3), torch.rand(16, 16)
A, B = scorch.from_torch(d, format="csr"), scorch.from_torch(d, format="csr")
L, one = scorch.from_torch(d, format="csr").requires_grad_(), torch.zeros(16, 1, dtype=torch.int64)
slow = [name for name in ("sympy", "torch._dynamo", "torch.distributed.tensor") if name not in sys.modules]
def refuse(function, *args):
    try:
        function(*args)
    except (RuntimeError, IndexError):
        return
    raise AssertionError((function, args))
for call in {COMMON_CALLS!r}.replace(chr(10), ";").split(";"):
    exec(call.strip())
    loaded = [name for name in slow if name in sys.modules]
    assert not loaded, (call, loaded)
"""
    run = run_python(["-W", "ignore", "-c", program], has="torch")
    assert run.returncode == 0, run.stderr


def test_the_import_searches_for_no_cycles_and_changes_no_setting_of_the_collector():
    program = """
import gc, torch
gc.unfreeze()
gc.collect()
searches, before = [], (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count())
gc.callbacks.append(lambda phase, info: searches.append(info["generation"]))
import scorch
assert max(searches, default=0) < 2, searches  # no search through all objects of torch
assert (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()) == before
"""
    run = run_python(["-W", "ignore", "-c", program], has="torch")
    assert run.returncode == 0, run.stderr


def test_the_import_leaves_objects_that_the_user_froze_frozen():
    program = """
import gc, torch
gc.freeze()
frozen = gc.get_freeze_count()
import scorch
assert gc.get_freeze_count() > frozen / 2  # those that are still referenced
"""
    run = run_python(["-W", "ignore", "-c", program], has="torch")
    assert run.returncode == 0, run.stderr
