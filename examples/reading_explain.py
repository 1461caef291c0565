"""
Reading an explanation
======================

``scorch.explain`` takes what ``einsum`` takes and says what the call does: the format of the result and why,
the order of the loops and which were rejected, what is stored otherwise first, memory, and the C text. Here
an einsum is explained in two formats. One of them costs a transposition, which is measured and avoided.

Run it with ``python examples/reading_explain.py --plot explain.png``.
"""

import argparse
import time

import matplotlib.pyplot as plt
import torch

import scorch

parser = argparse.ArgumentParser(description="Reading an explanation")
parser.add_argument("--quick", action="store_true", help="smaller matrices")
parser.add_argument("--plot", metavar="FILE", help="save the picture")
options = parser.parse_args()
n, rounds = (500, 3) if options.quick else (5000, 15)
torch.manual_seed(0)

# %%
# A product of two matrices by rows
# ---------------------------------
# Read from the top: the statement, the operands, the result. "i dense; k sparse" says why it is csr. The
# loops run i, j, k: for each row of A, for each entry in it, along a row of B. Entries of a row come out of
# order, so they are gathered in a workspace. Other orders of the loops stand below, and why they are dearer.

A = scorch.rand(n, n, density=20 / n, format="csr")
B = scorch.rand(n, n, density=20 / n, format="csr")
print(scorch.explain("ij,jk->ik", A, B).report(source=False))

# %%
# Two formats
# -----------
# A simpler one: how much each row of A and B has in common, ``ij,ij->i``. If both are csr, rows are walked
# side by side. Then B is given in csc, by columns, and only the lines that change are printed: B is
# transposed first, and that is most of the expected cost.

EQUATION = "ij,ij->i"
B_columns = B.to_format("csc")
by_rows, by_columns = scorch.explain(EQUATION, A, B), scorch.explain(EQUATION, A, B_columns)
before, after = (found.report(source=False).splitlines() for found in (by_rows, by_columns))
print(*("- " + line.strip() for line in before if line not in after), sep="\n")
print(*("+ " + line.strip() for line in after if line not in before), sep="\n")

# %%
# A program can ask, too: what is printed are attributes.

for name, found in (("B in csr", by_rows), ("B in csc", by_columns)):
    cost = found.steps[0].cost
    share = cost.transposition / cost.total
    print(f"{name}: loops {', '.join(found.loop_order)}; transposing is {share:.0%} of the expected cost")

# %%
# What it costs, and how to avoid it
# ----------------------------------
# "Its pattern is kept" means that the next call with this pattern moves values only. So transposing is dear
# where patterns are new each time. Convert once, where the tensor is made (``format="csr"``), or store both
# in the same way: with A in csc as well, nothing is transposed.

A_columns = A.to_format("csc")
both = scorch.explain(EQUATION, A_columns, B_columns)
print(f"both in csc: loops {', '.join(both.loop_order)}, {len(both.steps[0].conversions)} conversions")


def new_pattern() -> scorch.SparseTensor:
    """B in csc as if it came from somewhere else: nothing is known about its pattern yet."""
    arrays = B_columns.ccol_indices().clone(), B_columns.row_indices().clone(), B_columns.values()
    return scorch.sparse_csc_tensor(*arrays, B_columns.shape)


ways = {
    "csr and csr": lambda: (A, B),
    "csr and csc, new each time": lambda: (A, new_pattern()),
    "csr and csc, pattern known": lambda: (A, B_columns),
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
print("\nall results agree with dense torch; medians of measured times")
for name, ms in spent.items():
    print(f"{name:28} {ms:>8.2f} ms")

# %%
# Whole functions
# ---------------
# ``explain(fn)(*args)`` calls a function and tells of every kernel: predicted and measured time, what was
# transposed, which calls ``scorch.compile`` would make one kernel of.


def scored(A: scorch.SparseTensor, B: scorch.SparseTensor, d: torch.Tensor) -> torch.Tensor:
    """Something that does more than it has to."""
    product = (A * d[:, None]) @ B
    return torch.relu(product.sum(1))


whole = scorch.explain(scored)(A, B_columns, torch.rand(A.shape[0]))
print(f"\n{'kernel':42} {'predicted':>10} {'measured':>10}")
for kernel in whole.kernels:
    times = f"{kernel.predicted * 1e6:>7.0f} us {kernel.measured * 1e6:>7.0f} us" if kernel.predicted else ""
    print(f"{kernel.statement:42} {times}")
print("\n".join(f"- {sentence}" for sentence in whole.advice))

# %%
# The picture: what was expected, and what was measured.

figure, axes = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
costs = [found.steps[0].cost for found in (both, by_columns, by_rows)]
left = [0.0] * 3
for part in ("work", "assembly", "transposition"):
    values = [getattr(cost, part) / 1e3 for cost in costs]
    axes[0].barh(["csc, csc", "csr, csc", "csr, csr"], values, left=left, label=part)
    left = [a + b for a, b in zip(left, values, strict=True)]
axes[0].set(title="expected", xlabel="thousands of multiply-adds")
axes[0].legend()
axes[1].barh(list(spent)[::-1], list(spent.values())[::-1], color="C3")
axes[1].set(title="measured", xlabel="milliseconds")
if options.plot:
    figure.savefig(options.plot, dpi=120)

# %%
# At the end of ``print(explanation)`` stands the kernel itself. These are its loops.

lines = by_rows.source.splitlines()
begin = next(number for number, line in enumerate(lines) if "for (" in line)
print("\n".join(lines[begin : begin + 21]), "\n    ...")
