"""
Files, SciPy and a linear system
================================

Write a sparse matrix to a Matrix Market file and read it back, convert it to SciPy and back, and solve a
linear system with conjugate gradients. Ends with a table and a plot of the matrix and the solution: the
temperature of a plate whose edges are held at zero while one corner is heated.

Run it with ``python examples/matrix_market_scipy.py --plot plate.png``.

With ``--data DIR``, the matrix is ``suitesparse/bcsstk16.mtx.gz`` in that folder, the stiffness matrix of a
dam. Requires SciPy (``pip install scipy``).
"""

import argparse
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import scipy.io
import scipy.sparse
import scipy.sparse.linalg
import torch

import scorch

parser = argparse.ArgumentParser(description="Files, SciPy and a linear system")
parser.add_argument("--data", type=Path, metavar="DIR", help="folder with suitesparse/bcsstk16.mtx.gz")
parser.add_argument("--quick", action="store_true", help="a smaller plate")
parser.add_argument("--plot", metavar="FILE", help="save the plot")
options = parser.parse_args()
folder = Path(tempfile.mkdtemp())

# %%
# A matrix
# --------
# Each point of the plate has four neighbors, and the matrix describes how heat flows between them: it is
# built from the matrix of a line by Kronecker products.

if options.data is not None:
    A = scorch.load(options.data / "suitesparse" / "bcsstk16.mtx.gz", format="csr")
    side = None
else:
    side = 40 if options.quick else 160
    line = torch.tensor([[-1.0], [2.0], [-1.0]], dtype=torch.float64).expand(3, side)
    D = scorch.sparse.spdiags(line, torch.tensor([-1, 0, 1]), (side, side), format="csr")
    one = scorch.eye(side, dtype=torch.float64, format="csr")
    A = torch.kron(D, one) + torch.kron(one, D)
print(A)

# %%
# Round trips
# -----------
# The suffix determines the file type. SciPy reads and writes the same files, and its matrices share their
# values with Scorch's where formats and dtypes allow.

scorch.save(folder / "A.mtx", A)
scorch.save(folder / "A.npz", A)
as_scipy = A.to_scipy()
copies = {
    "A.mtx, read by Scorch": scorch.load(folder / "A.mtx", format="csr"),
    "A.mtx, read by SciPy": scorch.from_scipy(scipy.io.mmread(folder / "A.mtx"), format="csr"),
    "A.npz, read by Scorch": scorch.load(folder / "A.npz"),
    "A.npz, read by SciPy": scorch.from_scipy(scipy.sparse.load_npz(folder / "A.npz")),
    "to SciPy and back": scorch.from_scipy(as_scipy),
}
for name, copy in copies.items():
    same = copy.nnz == A.nnz and (copy - A).abs().sum().item() == 0
    assert same, name
    size = f"{(folder / name.split(',')[0]).stat().st_size:,} bytes" if "," in name else "in memory"
    print(f"{name:24} {size:>18}   the same matrix")

# %%
# Solve
# -----
# ``cg`` only needs products with the matrix. The preconditioner used here divides by the diagonal. SciPy's
# direct and iterative solvers must agree with it.

b = A.diagonal().to_dense()
if side is not None:
    b = torch.zeros(side, side, dtype=torch.float64)
    b[: side // 3, : side // 3] = 1.0 / side**2
    b = b.flatten()
inverse = 1 / A.diagonal().to_dense()
M = scorch.diag(inverse, format="csr")
csc = as_scipy.tocsc()
solvers = {
    "scorch.linalg.cg": lambda: scorch.linalg.cg(A, b, M=M),
    "torch.linalg.solve": lambda: torch.linalg.solve(A, b),
    "scipy, cg": lambda: torch.from_numpy(
        scipy.sparse.linalg.cg(as_scipy, b.numpy(), rtol=1e-10, M=M.to_scipy())[0]
    ),
    "scipy, spsolve": lambda: torch.from_numpy(scipy.sparse.linalg.spsolve(csc, b.numpy())),
}
x = solvers["scorch.linalg.cg"]()
print(f"\n{'':20} {'seconds':>9} {'residual':>10} {'vs. first':>15}")
for name, solve in solvers.items():
    start = time.perf_counter()
    solution = solve()
    seconds = time.perf_counter() - start
    residual = ((A @ solution - b).norm() / b.norm()).item()
    apart = ((solution - x).norm() / x.norm()).item()
    assert apart < 1e-5
    print(f"{name:20} {seconds:>9.3f} {residual:>10.1e} {apart:>15.1e}")

# %%
# Plot
# ----

figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
corner = 400  # the whole matrix is too large to show its diagonals
scorch.spy(A[:corner, :corner], axes[0], cells=corner)
axes[0].set(title=f"the first {corner} rows and columns", xlabel="column", ylabel="row")
if side is not None:
    picture = axes[1].imshow(x.reshape(side, side), cmap="inferno")
    axes[1].set(title="temperature", xticks=[], yticks=[])
    figure.colorbar(picture, ax=axes[1])
else:
    axes[1].plot(x, linewidth=0.5)
    axes[1].set(title="solution", xlabel="row")
if options.plot:
    figure.savefig(options.plot, dpi=120)
