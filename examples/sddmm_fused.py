"""
A fused kernel: SDDMM
=====================

``S * (Q @ K.T)`` needs the product only at the nonzeros of ``S``. Plain PyTorch computes the whole product
first and discards most of it. With ``scorch.compile``, or as one einsum, only the needed elements are
computed. Ends with a table and a plot of time and memory by size.

Run it with ``python examples/sddmm_fused.py --plot sddmm.png``.
"""

import argparse

import matplotlib.pyplot as plt
import torch
from torch.utils.benchmark import Timer

import scorch

parser = argparse.ArgumentParser(description="Sampled dense-dense matrix product")
parser.add_argument("--quick", action="store_true", help="small sizes")
parser.add_argument("--plot", metavar="FILE", help="save the plot")
options = parser.parse_args()
sizes = [128, 256, 512] if options.quick else [512, 1024, 2048, 4096, 8192]
seconds = 0.01 if options.quick else 0.3  # measuring time
width, in_row = 64, 32  # columns of Q and K, and nonzeros per row of S
torch.manual_seed(0)

# %%
# Four implementations
# --------------------
# ``torch.sparse.sampled_addmm`` is PyTorch's own function for its CSR layout; the values of ``S`` are
# multiplied afterwards. The compiled function is the first one, unchanged.


def dense_first(S: torch.Tensor, Q: torch.Tensor, K: torch.Tensor) -> torch.Tensor:
    return S * (Q @ K.T)


compiled = scorch.compile(dense_first)
torch_only = torch.sparse.sampled_addmm
ways = {
    "dense first": lambda S, T, Q, K: dense_first(S, Q, K),
    "sampled_addmm": lambda S, T, Q, K: torch_only(T, Q, K.T, beta=0.0).values() * T.values(),
    "compiled": lambda S, T, Q, K: compiled(S, Q, K),
    "einsum": lambda S, T, Q, K: scorch.einsum("ij,ik,jk->ij", S, Q, K),
}

# %%
# Time and memory
# ---------------
# Each row of ``S`` has 32 nonzeros. Memory counts the operands, the result and the intermediates, which are
# n x n numbers in the first implementation. Results are compared with dense PyTorch before they are timed.

times: dict[str, list[float]] = {name: [] for name in ways}
memory: dict[str, list[float]] = {"dense first": [], "einsum": []}
print(f"{'':9}" + "".join(f"{name:>17}" for name in ways) + f"{'memory: dense':>17}{'einsum':>11}")
for n in sizes:
    S = scorch.rand(n, n, density=in_row / n, format="csr")
    T, Q, K = S.to_torch(), torch.randn(n, width), torch.randn(n, width)
    wanted = ways["dense first"](S, T, Q, K).values()
    for name, way in ways.items():
        result = way(S, T, Q, K)
        result = result.values() if isinstance(result, scorch.SparseTensor) else result
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)
        timer = Timer(
            "way(S, T, Q, K)",
            globals={"way": way, "S": S, "T": T, "Q": Q, "K": K},
            num_threads=torch.get_num_threads(),
        )
        times[name].append(timer.blocked_autorange(min_run_time=seconds).median * 1e3)
    needs = scorch.explain("ij,ik,jk->ij", S, Q, K).steps[0].memory
    memory["einsum"].append((needs.operands + needs.result + needs.workspace) / 2**20)
    memory["dense first"].append(memory["einsum"][-1] + 4 * n * n / 2**20)
    print(f"n = {n:<5,}" + "".join(f"{spent[-1]:>14.2f} ms" for spent in times.values()), end="")
    print(f"{memory['dense first'][-1]:>13.1f} MiB{memory['einsum'][-1]:>7.1f} MiB")
print("all implementations agree")

# %%
# The first grows with the square of the size, the others with the number of nonzeros.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for ax, found, label in ((axes[0], times, "milliseconds"), (axes[1], memory, "MiB")):
    for name, values in found.items():
        ax.loglog(sizes, values, marker="o", label=name, color=f"C{list(ways).index(name)}")
    ax.set(xlabel="rows and columns of S", ylabel=label, xticks=sizes, xticklabels=sizes)
    ax.minorticks_off()
    ax.legend()
if options.plot:
    figure.savefig(options.plot, dpi=120)

# %%
# Fuse more
# ---------
# You can fuse the next calls as well: with ``scorch.compile``, the sampled product, a relu and a product
# with a third matrix become one loop over rows. The sparse matrix in between exists only for the rows being
# processed.


@scorch.compile
def layer(S: torch.Tensor, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
    return (S * (Q @ K.T)).relu() @ V


V = torch.randn(n, width)
torch.testing.assert_close(layer(S, Q, K, V), dense_first(S, Q, K).relu() @ V, rtol=1e-3, atol=1e-3)
print(scorch.explain(layer, S, Q, K, V))
