"""
A level format of one's own
===========================

A format is made of levels, and a level is one small class: it says in loop expressions how a kernel finds
the coordinates below a position, and in torch what it keeps of them. Here one is added from outside of
Scorch. In a *ragged* level the coordinates below a position are 0, 1, 2 ..., as those of texts of different
lengths, so that the lengths say it all. Ends in a table beside csr and a picture.

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

parser = argparse.ArgumentParser(description="A level format of one's own")
parser.add_argument("--quick", action="store_true", help="a smaller matrix")
parser.add_argument("--plot", metavar="FILE", help="save the picture")
options = parser.parse_args()
torch.manual_seed(0)

# %%
# The level
# ---------
# A compressed level keeps ``pos``, where the entries of each row begin, and ``crd``, a coordinate for each
# entry. That is what kernels append to, whatever the level. Once all entries are there, ``complete`` adds
# those that a ragged level must have besides (a row is stored from its first place on), and ``finish`` says
# what is kept in place of ``crd``: here nothing. Kernels ask ``coordinate`` for the column of an entry, and
# ``locate`` for the entry of a column.


class Ragged(Level):
    letter, name = "r", "ragged"
    is_padded = True  # it may store more than it was given

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


register_level(Ragged())  # from here on formats may be spelled with it

# %%
# Use it
# ------
# A tensor in this format is one like all others. Where the new level is walked, the kernel has what
# ``coordinate`` says in place of a load: see the line with ``j``.

n, width = (500, 40) if options.quick else (20_000, 120)
seconds = 0.01 if options.quick else 0.3  # to measure for
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
# It meets other formats in any expression, is the format of results, and goes to files.

small = 300
D = B[:small]
S = scorch.rand(small, width, density=0.05, format="coo")
dense, other = D.to_dense(), S.to_dense()
for equation in ("ij,kj->ik", "ij,ij->ij", "ij,ik->jk"):
    found, wanted = scorch.einsum(equation, D, S, format="ragged"), torch.einsum(equation, dense, other)
    assert str(found.format) == "ragged"
    torch.testing.assert_close(found.to_dense(), wanted, rtol=1e-4, atol=1e-5)
torch.testing.assert_close(torch.relu(2 * D - D).sum(0).to_dense(), dense.sum(0), rtol=1e-4, atol=1e-5)
print("einsum and torch's functions on ragged tensors agree with dense torch")

# %%
# Beside csr
# ----------
# Kernels read less, and the tensor keeps less, until a function that needs coordinates asks for them. A
# result is finished after its kernel, which takes time of its own.

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
axes[0].set(title="the first texts", xlabel="place", ylabel="text")
places = torch.arange(len(times))
for number, label in enumerate(("csr", "ragged")):
    axes[1].bar(places + 0.4 * number - 0.2, [pair[number] for pair in times.values()], 0.4, label=label)
axes[1].set(xticks=places, xticklabels=list(times), ylabel="milliseconds", title="measured")
axes[1].legend()
if options.plot:
    figure.savefig(options.plot, dpi=120)
