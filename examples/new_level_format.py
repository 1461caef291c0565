"""
A level format of one's own
===========================

A format is made of levels, and a level is one small class: it says in loop expressions how a kernel finds the
coordinates below a position. Here one is added from outside of Scorch. In a *banded* level the coordinates
below a position follow each other without gaps, so one number for each row replaces a coordinate for each
entry. Ends in a table beside csr and a picture.

Run it with ``python examples/new_level_format.py --plot banded.png``.
"""

import argparse

import matplotlib.pyplot as plt
import torch
from torch.utils.benchmark import Timer

import scorch
from scorch._src.formats import Format, Level, LevelArrays
from scorch._src.formats.dense import Dense
from scorch._src.loops.nodes import Binary, Expr, Load, wide
from scorch._src.loops.types import INT64
from scorch.errors import FormatError

parser = argparse.ArgumentParser(description="A level format of one's own")
parser.add_argument("--quick", action="store_true", help="a smaller matrix")
parser.add_argument("--plot", metavar="FILE", help="save the picture")
options = parser.parse_args()
torch.manual_seed(0)

# %%
# The level
# ---------
# A compressed level keeps ``pos``, where the entries of each row begin, and ``crd``, a coordinate for each
# entry. A *coded* level has the same entries, but kernels get what ``code`` makes of the coordinates: here
# column less position, one number for each row. With it ``coordinate`` computes the column of an entry, and
# ``search`` finds a column without looking for it.


class Banded(Level):
    letter, name = "b", "banded"
    is_full, keeps_crd, keeps_pos, is_coded = False, True, True, True

    def count(self, parents: int, size: int, entries: int) -> int:
        return entries

    def code(self, pos: torch.Tensor, crd: torch.Tensor) -> torch.Tensor:
        begins, lengths = pos[:-1].long(), pos.diff()
        has_entries = lengths > 0
        shift = torch.zeros_like(begins)
        shift[has_entries] = crd[begins[has_entries]] - begins[has_entries]
        if not torch.equal(crd - torch.arange(crd.numel()), shift.repeat_interleave(lengths)):
            raise FormatError(
                "a banded level has no gaps; store the tensor in another format first, such as csr"
            )
        return shift

    def coordinate(self, arrays: LevelArrays, position: Expr, parent: Expr) -> Expr:
        return position + wide(Load(arrays.crd, parent))

    def search(self, arrays: LevelArrays, start: Expr, stop: Expr, coordinate: Expr, parent: Expr) -> Expr:
        place = coordinate - wide(Load(arrays.crd, parent))
        return Binary("min", Binary("max", place, start, INT64), stop, INT64)


banded = Format([Dense(), Banded()])  # rows are dense, columns banded

# %%
# Use it
# ------
# A tensor in this format is one like all others. Where the new level is walked, the kernel has what
# ``coordinate`` says in place of a load: see the line with ``j``.

n, width = (500, 9) if options.quick else (20_000, 33)
lines = torch.rand(width, n)
A = scorch.sparse.spdiags(lines, torch.arange(width) - width // 2, (n, n), format="csr")
B = A.to_format(banded)
x, X = torch.rand(n), torch.rand(n, 32)
print(B)
source = scorch.explain("ij,j->i", B, x).source.splitlines()
print(*(line for line in source if "for (i64" in line or "const i64 j =" in line), sep="\n")

# %%
# It meets other formats in any expression, and whatever torch's functions do. What has gaps is refused.

small = 400
C, D = A[:small, :small], B[:small, :small]
S = scorch.rand(small, small, density=0.05, format="coo")
dense, other = C.to_dense(), S.to_dense()
for equation in ("ij,jk->ik", "ij,ij->ij", "ij,kj->ik", "ij,ji->i"):
    found, wanted = scorch.einsum(equation, D, S), torch.einsum(equation, dense, other)
    found = found.to_dense() if isinstance(found, scorch.SparseTensor) else found
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
torch.testing.assert_close(torch.relu(2 * D - D).sum(0).to_dense(), dense.sum(0), rtol=1e-4, atol=1e-5)
print("einsum and torch's functions on banded tensors agree with dense torch")
try:
    S.to_format(banded)
except FormatError as error:
    print("refused:", error)

# %%
# Beside csr
# ----------
# Kernels read less: bytes are those of the arrays that they get. (The tensor keeps its coordinates as well,
# for functions that go through no kernel, so that a coded level saves time and not memory.)

calls = {"A @ x": ("ij,j->i", x), "A @ X": ("ij,jk->ik", X), "A * A.T": ("ij,ji->ij", None)}
print(f"\n{'':10} {'csr':>12} {'banded':>12}")
sizes = [sum(array.numel() * array.element_size() for array in T.storage.pattern.arrays) for T in (A, B)]
print(f"{'indices':10} {sizes[0] / 1024:>8,.0f} KiB {sizes[1] / 1024:>8,.0f} KiB")
times: dict[str, list[float]] = {}
for name, (equation, right) in calls.items():
    times[name] = []
    for T in (A, B):
        scope = {"f": scorch.einsum, "e": equation, "a": T, "b": T if right is None else right}
        timer = Timer("f(e, a, b)", globals=scope, num_threads=torch.get_num_threads())
        times[name].append(timer.blocked_autorange(min_run_time=0.3).median * 1e3)
    print(f"{name:10} {times[name][0]:>9.2f} ms {times[name][1]:>9.2f} ms")

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
corner = B[: 3 * width, : 3 * width]
scorch.spy(corner, axes[0], cells=3 * width)
axes[0].set(title="a corner of the matrix", xlabel="column", ylabel="row")
places = torch.arange(len(times))
for number, label in enumerate(("csr", "banded")):
    axes[1].bar(places + 0.4 * number - 0.2, [pair[number] for pair in times.values()], 0.4, label=label)
axes[1].set(xticks=places, xticklabels=list(times), ylabel="milliseconds", title="measured")
axes[1].legend()
if options.plot:
    figure.savefig(options.plot, dpi=120)
