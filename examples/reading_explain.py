"""
Reading an explanation
======================

``scorch.explain`` takes the arguments of ``einsum`` and shows what the call does: the result format and the
reason for it, the loop order and the rejected orders, conversions, memory, and the C source. This example
explains an einsum in two formats. One of them needs a transposition, which is measured and then avoided.

Run it with ``python examples/reading_explain.py --plot explain.png``.
"""

import argparse
import time

import matplotlib.pyplot as plt
import torch

import scorch

parser = argparse.ArgumentParser(description="Reading an explanation")
parser.add_argument("--quick", action="store_true", help="smaller matrices")
parser.add_argument("--plot", metavar="FILE", help="save the plot")
options = parser.parse_args()
n, rounds = (500, 3) if options.quick else (5000, 15)
torch.manual_seed(0)

# %%
# A product of two csr matrices
# -----------------------------
# Read from the top: the statement, the operands, the result. "i dense; k sparse" says why it is csr. The
# loop order is i, j, k: for each row of A, for each nonzero in it, along a row of B. The elements of a row
# are computed out of order, so a workspace collects them. The rejected loop orders are listed below, with
# their costs.

A = scorch.rand(n, n, density=20 / n, format="csr")
B = scorch.rand(n, n, density=20 / n, format="csr")
print(scorch.explain("ij,jk->ik", A, B).report(source=False))

# %%
# Two formats
# -----------
# A simpler expression: the overlap of the rows of A and B, ``ij,ij->i``. If both are csr, their rows are
# traversed together. Then B is passed in csc, and only the lines that change are printed: B is transposed
# first, and that is most of the predicted cost.

EQUATION = "ij,ij->i"
B_columns = B.to_format("csc")
by_rows, by_columns = scorch.explain(EQUATION, A, B), scorch.explain(EQUATION, A, B_columns)
before, after = (plan.report(source=False).splitlines() for plan in (by_rows, by_columns))
print(*("- " + line.strip() for line in before if line not in after), sep="\n")
print(*("+ " + line.strip() for line in after if line not in before), sep="\n")

# %%
# Programs can read the same information from attributes.

for name, plan in (("B in csr", by_rows), ("B in csc", by_columns)):
    cost = plan.steps[0].cost
    share = cost.transposition / cost.total
    print(f"{name}: loops {', '.join(plan.loop_order)}; transposing is {share:.0%} of the predicted cost")

# %%
# What it costs, and how to avoid it
# ----------------------------------
# The transposed sparsity pattern is cached, so the next call with this pattern only moves values.
# Transposing is therefore expensive only if every call has a new pattern. Convert once, when you create
# the tensor (``format="csr"``), or store both in the same format: with A in csc as well, nothing is
# transposed.

A_columns = A.to_format("csc")
both = scorch.explain(EQUATION, A_columns, B_columns)
print(f"both in csc: loops {', '.join(both.loop_order)}, {len(both.steps[0].conversions)} conversions")


def new_pattern() -> scorch.SparseTensor:
    """Return B in csc with a new sparsity pattern, about which nothing is cached yet."""
    arrays = B_columns.ccol_indices().clone(), B_columns.row_indices().clone(), B_columns.values()
    return scorch.sparse_csc_tensor(*arrays, B_columns.shape)


ways = {
    "csr and csr": lambda: (A, B),
    "csr and csc, new pattern": lambda: (A, new_pattern()),
    "csr and csc, cached pattern": lambda: (A, B_columns),
    "csc and csc": lambda: (A_columns, B_columns),
}
wanted, spent = (A.to_dense() * B.to_dense()).sum(1), {}
for name, make in ways.items():
    times = []
    for _ in range(rounds):
        operands = make()
        start = time.perf_counter()
        result = scorch.einsum(EQUATION, *operands)
        times.append(time.perf_counter() - start)
    result = result.to_dense() if isinstance(result, scorch.SparseTensor) else result
    torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)
    spent[name] = sorted(times)[rounds // 2] * 1e3
print("\nall results agree with dense PyTorch; medians of measured times")
for name, ms in spent.items():
    print(f"{name:28} {ms:>8.2f} ms")

# %%
# Whole functions
# ---------------
# ``explain(fn)(*args)`` runs a function and reports every kernel: predicted and measured time, conversions,
# and which calls ``scorch.compile`` would fuse into one kernel.


def scored(A: scorch.SparseTensor, B: scorch.SparseTensor, d: torch.Tensor) -> torch.Tensor:
    """Compute something in an inefficient way."""
    product = (A * d[:, None]) @ B
    return torch.relu(product.sum(1))


whole = scorch.explain(scored)(A, B_columns, torch.rand(A.shape[0]))
print(f"\n{'kernel':42} {'predicted':>10} {'measured':>10}")
for kernel in whole.kernels:
    times = f"{kernel.predicted * 1e6:>7.0f} us {kernel.measured * 1e6:>7.0f} us" if kernel.predicted else ""
    print(f"{kernel.statement:42} {times}")
print("\n".join(f"- {sentence}" for sentence in whole.advice))

# %%
# Predicted and measured times as a plot.

figure, axes = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
costs = [plan.steps[0].cost for plan in (both, by_columns, by_rows)]
left = [0.0] * 3
for part in ("work", "assembly", "transposition"):
    values = [getattr(cost, part) / 1e3 for cost in costs]
    axes[0].barh(["csc, csc", "csr, csc", "csr, csr"], values, left=left, label=part)
    left = [a + b for a, b in zip(left, values, strict=True)]
axes[0].set(title="predicted", xlabel="thousands of multiply-adds")
axes[0].legend()
axes[1].barh(list(spent)[::-1], list(spent.values())[::-1], color="C3")
axes[1].set(title="measured", xlabel="milliseconds")
if options.plot:
    figure.savefig(options.plot, dpi=120)

# %%
# ``print(explanation)`` ends with the kernel itself. These are its loops.

lines = by_rows.source.splitlines()
begin = next(number for number, line in enumerate(lines) if "for (" in line)
print("\n".join(lines[begin : begin + 21]), "\n    ...")
