"""
Sparse attention: BigBird
=========================

In BigBird's attention, a token attends to its neighborhood, some random blocks and a few global tokens. The
mask is a sparse matrix, and the cost of attention depends on its number of nonzeros. Ends with a table and
a plot of the mask and of the time compared with dense attention, for growing sequence lengths.

Run it with ``python examples/bigbird.py --plot bigbird.png``.
"""

import argparse

import matplotlib.pyplot as plt
import torch
from torch.utils.benchmark import Timer

import scorch
from scorch.nn import masks

parser = argparse.ArgumentParser(description="BigBird's attention")
parser.add_argument("--quick", action="store_true", help="short sequences")
parser.add_argument("--plot", metavar="FILE", help="save the plot")
options = parser.parse_args()
lengths = [64, 128, 256] if options.quick else [256, 512, 1024, 2048, 4096]
seconds = 0.01 if options.quick else 0.3  # measuring time
draw = torch.Generator().manual_seed(0)
torch.manual_seed(0)

# %%
# The mask
# --------
# It lists the query-key pairs to compute. Combine masks with ``|`` and ``&``; ``bigbird`` is built from
# parts like these.

n = 256
whole = masks.bigbird(n, generator=draw)
parts = masks.global_tokens(n, 2) | masks.window(n, 32) | masks.random_blocks(n, 16, 2, generator=draw)
print(f"bigbird: {whole.nnz:,} pairs; combined by hand: {parts.nnz:,}; all: {n * n:,}")

# %%
# A layer
# -------
# ``scorch.nn.MultiheadAttention`` has the same arguments and parameters as PyTorch's, plus ``pairs``, the
# pairs to compute; PyTorch's ``attn_mask`` lists those to leave out. Here, both layers have the same
# weights.

layer = scorch.nn.MultiheadAttention(256, 4, batch_first=True).eval()
dense = torch.nn.MultiheadAttention(256, 4, batch_first=True).eval()
dense.load_state_dict(layer.state_dict())
x = torch.randn(2, n, 256)
with torch.no_grad():
    output = layer(x, x, x, pairs=whole)[0]
    wanted = dense(x, x, x, attn_mask=~whole.to_dense(), need_weights=False)[0]
torch.testing.assert_close(output, wanted, rtol=1e-4, atol=1e-5)
print("sparse and dense attention agree")

# %%
# Longer sequences
# ----------------
# Dense attention is timed with the mask and without a mask, which is less work for PyTorch. The number of
# pairs in BigBird's mask grows linearly with the sequence length, all pairs quadratically.

names = ["dense, masked", "dense, all pairs", "sparse"]
times: dict[str, list[float]] = {name: [] for name in names}
print(f"\n{'tokens':>7} {'pairs':>10} {'of all':>7}" + "".join(f"{name:>20}" for name in names))
for n in lengths:
    mask = masks.bigbird(n, generator=draw)
    masked_out, x = ~mask.to_dense(), torch.randn(1, n, 256)
    calls = {
        "dense, masked": lambda: dense(x, x, x, attn_mask=masked_out, need_weights=False),  # noqa: B023 - called here
        "dense, all pairs": lambda: dense(x, x, x, need_weights=False),  # noqa: B023
        "sparse": lambda: layer(x, x, x, pairs=mask),  # noqa: B023
    }
    with torch.no_grad():
        for name, call in calls.items():
            timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
            call()
            times[name].append(timer.blocked_autorange(min_run_time=seconds).median * 1e3)
    row = "".join(f"{times[name][-1]:>17.2f} ms" for name in names)
    print(f"{n:>7,} {mask.nnz:>10,} {mask.density:>7.1%}{row}")

# %%
# Plot
# ----

figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.2), layout="constrained")
scorch.spy(whole, axes[0], cmap="Blues", vmax=1)
axes[0].set(title=f"attention mask: {whole.density:.0%} of all pairs", xlabel="key", ylabel="query")
for name, values in times.items():
    axes[1].loglog(lengths, values, marker="o", label=name)
axes[1].set(title="one layer, 4 heads of 64", xlabel="tokens", ylabel="milliseconds")
axes[1].set(xticks=lengths, xticklabels=lengths)
axes[1].minorticks_off()
axes[1].legend()
if options.plot:
    figure.savefig(options.plot, dpi=120)
