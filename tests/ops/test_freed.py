"""A dense operand whose memory was taken away is refused, not read.

torch itself raises a ``RuntimeError`` in some functions and ends the process in others. All calls run in one
other process, which says what it does next, so that a crash has a name.
"""

from __future__ import annotations

import os
import sys

from fork_server import run_python

CALLS = {
    "matrix product": "S @ X",
    "matrix by vector": "S @ x",
    "matrix product after another": "S @ torch.ones(4, 4); S @ X",
    "from the left": "X @ S",
    "sum": "S + X",
    "sum from the left": "X + S",
    "difference": "X - S",
    "product": "S * X",
    "product after another": "S * torch.ones(4, 4); S * X",
    "quotient": "S / X",
    "power": "S ** X",
    "maximum": "torch.maximum(S, X)",
    "comparison": "S == X",
    "where": "torch.where(B, S, S)",
    "lerp": "torch.lerp(S, X, 0.5)",
    "rows": "S[I]",
    "mask": "S[B]",
    "index_select": "torch.index_select(S, 0, I)",
    "index_add": "S.index_add(0, I, torch.ones(4, 4))",
    "source": "S.index_add(0, torch.arange(4), X)",
    "assignment": "S[I] = X",
    "masked_fill": "S.masked_fill(B, 1.0)",
    "masked_scatter": "S.masked_scatter(B, X)",
    "embedding": "torch.nn.functional.embedding(I, S)",
    "cat": "torch.cat([S, X])",
    "stack": "torch.stack([S, X])",
    "kron": "torch.kron(S, X)",
    "addmm": "torch.addmm(X, S, torch.ones(4, 4))",
    "sampled product": "torch.sparse.sampled_addmm(S, X, X)",
    "linear": "torch.nn.functional.linear(X, S)",
    "bias": "torch.nn.functional.linear(torch.ones(4, 4), S, x)",
    "attention": "torch.nn.functional.scaled_dot_product_attention(X, X, X, S.bool())",
    "graph layer": "scorch.nn.GCNConv(4, 4)(X, S)",
    "mse_loss": "torch.nn.functional.mse_loss(S, X)",
    "copy": "X.copy_(S)",
    "out": "torch.mm(S, torch.ones(4, 4), out=X)",
    "in place": "X += S",
    "einsum": "scorch.einsum('ij,jk,k->i', S, X, x)",
    "evaluate": "scorch.evaluate('C[i,j] = A[i,j] * X[i,j]', A=S, X=X)",
    "compiled": "scorch.compile(lambda S, y: torch.relu(S * 2) @ y)(S, X)",
    "gradient": "Y = torch.ones(4, 4).requires_grad_(); (S @ Y).backward(X)",
    "as another": "S.to(X, 1, 2, 3, 4)",
    "conversion": "scorch.from_torch(X, format='csr')",
    "constructor": "scorch.sparse_coo_tensor([[0, 1, 2, 3]], x, (4,))",
    "edges": "scorch.from_edge_index(torch.zeros(2, 4, dtype=torch.int64), x)",
    "diagonal": "S.setdiag(x)",
    "sparse_mask": "X.sparse_mask(S)",
    "values": "T @ torch.ones(4)",
    "values of both": "T + T",
    "values of a product": "T.T @ T",
}

SCRIPT = """
import torch, scorch
def make():
    S = scorch.from_torch(torch.eye(4), format="csr")
    x, X, I, B = torch.ones(4), torch.ones(4, 4), torch.zeros(4, dtype=torch.int64), torch.ones(4, 4).bool()
    v = torch.ones(4)
    T = scorch.sparse_csr_tensor([0, 1, 2, 3, 4], [0, 1, 2, 3], v, (4, 4))
    for tensor in (x, X, I, B, v):
        tensor.untyped_storage().resize_(0)
    return dict(S=S, T=T, x=x, X=X, I=I, B=B, torch=torch, scorch=scorch)
for name, call in CALLS.items():
    print(name, end=": ", flush=True)
    try:
        exec(call, make())
        print("accepted")
    except RuntimeError as error:
        print("refused" if "no memory" in str(error) else error)
"""


def test_operands_without_memory_are_refused() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python(["-c", f"CALLS = {CALLS!r}\n{SCRIPT}"], env=environment)
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]}\n{done.stderr[-3000:]}"
    assert {name: said.get(name) for name in CALLS} == dict.fromkeys(CALLS, "refused")


def test_a_tensor_without_memory_is_shown_without_its_values() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    script = SCRIPT.partition("for name, call")[0] + "print(make()['T'])"
    done = run_python(["-c", script], env=environment)
    assert done.stdout.startswith("SparseTensor(shape=(4, 4)") and "values=" not in done.stdout, done.stderr
