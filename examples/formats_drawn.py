"""
Formats as trees
================

One small matrix in five formats: what each level stores, drawn as a tree, and how much memory the formats
use for different kinds of matrices. A format is one level per dimension: ``d`` dense (every coordinate is
present), ``s`` compressed (the coordinates below each parent), ``o`` coordinate (one coordinate per
nonzero).

Run it with ``python examples/formats_drawn.py --plot formats.png``.
"""

import argparse

import matplotlib.pyplot as plt
import torch

import scorch

parser = argparse.ArgumentParser(description="One matrix in several formats")
parser.add_argument("--quick", action="store_true", help="smaller matrices in the table")
parser.add_argument("--plot", metavar="FILE", help="save the plot")
options = parser.parse_args()
torch.manual_seed(0)

# %%
# One matrix, five trees
# ----------------------
# Rows 2 and 5 are empty: ``csr`` still has room for them, ``dcsr`` does not. ``csc`` is stored by columns.
# ``bsr(2,2)`` stores whole blocks, including the zeros in them. The format affects speed and memory, never
# the values.

matrix = torch.zeros(6, 6)
for row, column, value in [(0, 0, 1), (0, 1, 2), (1, 1, 3), (3, 4, 4), (4, 0, 5), (4, 5, 6)]:
    matrix[row, column] = value
FORMATS = ["csr", "csc", "coo", "dcsr", "bsr(2,2)"]
drawings = {name: scorch.draw(scorch.from_torch(matrix, format=name)) for name in FORMATS}
for name in ("csr", "dcsr"):
    print(drawings[name], "\n")

# %%
# Tensors with more dimensions work the same way. ``csf`` is ``sss``: every level is compressed, so that
# each parent is stored once.

cube = scorch.sparse_coo_tensor([[0, 0, 0, 2], [1, 1, 3, 0], [0, 2, 1, 2]], [1.0, 2.0, 3.0, 4.0], (3, 4, 3))
print(scorch.draw(cube.to_format("csf")))

# %%
# All trees in one plot
# ---------------------

figure, axes = plt.subplots(
    1, 6, figsize=(14, 4.1), layout="constrained", width_ratios=[1.7, 1, 1, 1, 1, 1.4]
)
axes[0].imshow(matrix != 0, cmap="Blues", vmax=2.5)
for row, column in matrix.nonzero().tolist():
    axes[0].text(column, row, f"{matrix[row, column]:.0f}", ha="center", va="center")
axes[0].set(title="the matrix", xlabel="dimension 1", ylabel="dimension 0", xticks=range(6), yticks=range(6))
for ax, (name, drawing) in zip(axes[1:], drawings.items(), strict=True):
    tree = "\n".join(drawing.splitlines()[2:])
    ax.text(0, 1, tree, family="monospace", fontsize=10.5, va="top", linespacing=1.25)
    note = " by columns" if name == "csc" else ""
    ax.set_title(f"{name}: {scorch.Format(name).letters}{note}", fontsize=11, loc="left")
    ax.set_axis_off()
if options.plot:
    figure.savefig(options.plot, dpi=120)

# %%
# Memory
# ------
# Bytes of index arrays and values. Hypersparse matrices favor ``dcsr``, block sparsity favors ``bsr``, and
# above a density of about 50% nothing beats a dense tensor. All formats compute the same product, which is
# checked.

n = 256 if options.quick else 2048
few_rows = scorch.rand(n, n, density=0.01, format="csr") * (torch.rand(n, 1) < 0.02)
blocks = scorch.from_torch(torch.kron((torch.rand(n // 4, n // 4) < 0.02).float(), torch.ones(4, 4)), "csr")
kinds = {
    "1%, random": scorch.rand(n, n, density=0.01, format="csr"),
    "few rows": few_rows.eliminate_zeros(),
    "blocks 4 x 4": blocks,
    "60% density": scorch.rand(n, n, density=0.6, format="csr"),
}


def size(tensor: torch.Tensor) -> int:
    if not isinstance(tensor, scorch.SparseTensor):
        return tensor.numel() * tensor.element_size()
    arrays = [level[name] for level in tensor.levels for name in ("pos", "crd") if level[name] is not None]
    return sum(array.numel() * array.element_size() for array in [*arrays, tensor.values()])


columns = ["csr", "csc", "coo", "dcsr", "bsr(4,4)", "dense"]
print(f"\nKiB of a {n:,} x {n:,} matrix\n{'':15}" + "".join(f"{name:>10}" for name in columns))
x = torch.rand(n)
for kind, S in kinds.items():
    stored = [S.to_dense() if name == "dense" else S.to_format(name) for name in columns]
    for tensor in stored:
        torch.testing.assert_close(tensor @ x, S.to_dense() @ x, rtol=1e-4, atol=1e-4)
    sizes = [size(tensor) / 1024 for tensor in stored]
    marks = ["*" if kib == min(sizes) else " " for kib in sizes]
    print(f"{kind:15}" + "".join(f"{kib:>9,.1f}{mark}" for kib, mark in zip(sizes, marks, strict=True)))
print("* the smallest; the product with a vector is the same in all of them")
