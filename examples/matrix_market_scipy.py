"""
Files, SciPy and a system of equations
======================================

A sparse matrix is written to a Matrix Market file and read again, goes to SciPy and back, and a system with
it is solved by conjugate gradients. Ends in a table and a picture of the matrix and the solution: the
temperature of a plate whose edges are held at zero while one corner is heated.

Run it with ``python examples/matrix_market_scipy.py --plot plate.png``.

With ``--data DIR`` the matrix is ``suitesparse/bcsstk16.mtx.gz`` of that folder, the stiffness of a dam.
Needs SciPy (``pip install scipy``).
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

parser = argparse.ArgumentParser(description="Files, SciPy and a system of equations")
parser.add_argument(
    "--data", type=Path, metavar="DIR", help="the folder that has suitesparse/bcsstk16.mtx.gz"
)
parser.add_argument("--quick", action="store_true", help="a smaller plate")
parser.add_argument("--plot", metavar="FILE", help="save the picture")
options = parser.parse_args()
folder = Path(tempfile.mkdtemp())

# %%
# A matrix
# --------
# Each point of a plate has four neighbours, and the matrix says how heat flows between them: it is made of
# the matrix of a line by Kronecker products.

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
# There and back
# --------------
# The suffix says how a file is written. What SciPy reads and writes is the same: SciPy's matrices share their
# arrays with Scorch's where formats and dtypes allow.

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
# ``cg`` needs products with the matrix only. Its preconditioner here divides by the diagonal. SciPy's direct
# and iterative solvers do the same; all have to agree.

b = A.diagonal().to_dense()
if side is not None:
    b = torch.zeros(side, side, dtype=torch.float64)
    b[: side // 3, : side // 3] = 1.0 / side**2
    b = b.flatten()
inverse = 1 / A.diagonal().to_dense()
M = scorch.diag(inverse, format="csr")
csc = as_scipy.tocsc()
ways = {
    "scorch.linalg.cg": lambda: scorch.linalg.cg(A, b, M=M),
    "torch.linalg.solve": lambda: torch.linalg.solve(A, b),
    "scipy, cg": lambda: torch.from_numpy(
        scipy.sparse.linalg.cg(as_scipy, b.numpy(), rtol=1e-10, M=M.to_scipy())[0]
    ),
    "scipy, spsolve": lambda: torch.from_numpy(scipy.sparse.linalg.spsolve(csc, b.numpy())),
}
x = ways["scorch.linalg.cg"]()
print(f"\n{'':20} {'seconds':>9} {'residual':>10} {'from the first':>15}")
for name, solve in ways.items():
    start = time.perf_counter()
    found = solve()
    seconds = time.perf_counter() - start
    residual = ((A @ found - b).norm() / b.norm()).item()
    apart = ((found - x).norm() / x.norm()).item()
    assert apart < 1e-5
    print(f"{name:20} {seconds:>9.3f} {residual:>10.1e} {apart:>15.1e}")

# %%
# The picture
# -----------

figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
corner = 400  # the whole matrix is too large to see its lines
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
