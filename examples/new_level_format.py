"""
Write your own level format
===========================

A format consists of levels, and a level is one small class. It describes in loop expressions how a kernel
finds the coordinates below a position, and in PyTorch operations what it stores for them. This example adds
a level without changing Scorch. In a *ragged* level, the coordinates below a position are 0, 1, 2 ..., like
the tokens of texts of different lengths, so it only stores lengths. Ends with a comparison with csr, as a
table and a plot.

Run it with ``python examples/new_level_format.py --plot ragged.png``.
"""

import argparse

import matplotlib.pyplot as plt
import torch
from torch.utils.benchmark import Timer

import scorch
from scorch._src.loops.nodes import Binary, Expr, Load, wide
from scorch._src.loops.types import INT64
from scorch.formats import Level, LevelArrays, register_level

parser = argparse.ArgumentParser(description="Write your own level format")
parser.add_argument("--quick", action="store_true", help="a smaller matrix")
parser.add_argument("--plot", metavar="FILE", help="save the plot")
options = parser.parse_args()
torch.manual_seed(0)

# %%
# The level
# ---------
# A compressed level stores ``pos``, where the nonzeros of each row start, and ``crd``, the coordinate of
# each nonzero. Kernels always append in this form. Afterwards, ``complete`` adds the explicit zeros that a
# ragged level must store (each row is stored from its first element), and ``finish`` returns what is stored
# instead of ``crd``: here nothing. Kernels call ``coordinate`` for the column of a nonzero, and ``locate``
# for the position of a column.


class Ragged(Level):
    letter, name = "r", "ragged"
    is_padded = True  # it may store more than the given coordinates

    def coordinate(self, arrays: LevelArrays, position: Expr, parent: Expr) -> Expr:
        return position - wide(Load(arrays.pos, parent))

    def locate(self, arrays: LevelArrays, parent: Expr, coordinate: Expr, start: Expr, stop: Expr) -> Expr:
        return Binary("min", start + coordinate, stop, INT64)

    def length(self, parents: int, size: int, entries: int) -> int:
        return 0

    def room(self, pos: torch.Tensor, crd: torch.Tensor, size: int) -> int:
        return int(self.lengths(pos, crd).sum())

    def complete(self, pos: torch.Tensor, crd: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = self.lengths(pos, crd)
        whole = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        return whole, self.coordinates(whole, crd, size)

    def finish(self, pos: torch.Tensor, crd: torch.Tensor, size: int) -> torch.Tensor:
        return crd[:0]

    def coordinates(self, pos: torch.Tensor, finished: torch.Tensor, size: int) -> torch.Tensor:
        return torch.arange(int(pos[-1])) - pos[:-1].repeat_interleave(pos.diff())

    def lengths(self, pos: torch.Tensor, crd: torch.Tensor) -> torch.Tensor:
        lengths = pos.diff().long()
        lengths[lengths > 0] = crd[pos[1:][lengths > 0].long() - 1].long() + 1
        return lengths


register_level(Ragged())  # formats can use it from here on

# %%
# Use it
# ------
# A tensor in this format works like any other. Where the kernel iterates over the new level, it uses the
# expression from ``coordinate`` instead of a load: see the line with ``j``.

n, width = (500, 40) if options.quick else (20_000, 120)
seconds = 0.01 if options.quick else 0.3  # measuring time
lengths = torch.randint(1, width, (n, 1))
texts = torch.where(torch.arange(width) < lengths, torch.rand(n, width) + 0.1, 0)
A = scorch.from_torch(texts, format="csr")
B = A.to_format("ragged")
sizes = [T.storage.pattern.bytes() for T in (A, B)]
x, X = torch.rand(width), torch.rand(width, 32)
print(B)
source = scorch.explain("ij,j->i", B, x).source.splitlines()
print(*(line for line in source if "for (i64" in line or "const i64 j =" in line), sep="\n")

# %%
# It can be combined with other formats in any expression, used for results, and saved to files.

small = 300
D = B[:small]
S = scorch.rand(small, width, density=0.05, format="coo")
dense, other = D.to_dense(), S.to_dense()
for equation in ("ij,kj->ik", "ij,ij->ij", "ij,ik->jk"):
    result, wanted = scorch.einsum(equation, D, S, format="ragged"), torch.einsum(equation, dense, other)
    assert str(result.format) == "ragged"
    torch.testing.assert_close(result.to_dense(), wanted, rtol=1e-4, atol=1e-5)
torch.testing.assert_close(torch.relu(2 * D - D).sum(0).to_dense(), dense.sum(0), rtol=1e-4, atol=1e-5)
print("einsum and PyTorch functions on ragged tensors agree with dense PyTorch")

# %%
# Comparison with csr
# -------------------
# Kernels read less, and the tensor stores less, until a function needs the coordinates. A result is
# finished after its kernel has run, which takes extra time.

calls = {"A @ x": ("ij,j->i", x), "A @ X": ("ij,jk->ik", X), "A * A": ("ij,ij->ij", None)}
print(f"\n{'':10} {'csr':>12} {'ragged':>12}")
print(f"{'indices':10} {sizes[0] / 1024:>8,.0f} KiB {sizes[1] / 1024:>8,.0f} KiB")
times: dict[str, list[float]] = {}
for name, (equation, right) in calls.items():
    times[name] = []
    for T in (A, B):
        scope = {"f": scorch.einsum, "e": equation, "a": T, "b": T if right is None else right}
        timer = Timer("f(e, a, b)", globals=scope, num_threads=torch.get_num_threads())
        times[name].append(timer.blocked_autorange(min_run_time=seconds).median * 1e3)
    print(f"{name:10} {times[name][0]:>9.2f} ms {times[name][1]:>9.2f} ms")

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
scorch.spy(B[:width], axes[0], cells=width)
axes[0].set(title="the first texts", xlabel="position", ylabel="text")
positions = torch.arange(len(times))
for number, label in enumerate(("csr", "ragged")):
    axes[1].bar(positions + 0.4 * number - 0.2, [pair[number] for pair in times.values()], 0.4, label=label)
axes[1].set(xticks=positions, xticklabels=list(times), ylabel="milliseconds", title="measured")
axes[1].legend()
if options.plot:
    figure.savefig(options.plot, dpi=120)
