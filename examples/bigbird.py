"""
Sparse attention: BigBird
=========================

In BigBird's attention a token sees its neighbourhood, some random blocks and a few global tokens. The mask is
a sparse matrix, and attention costs what its pairs cost. Ends in a table and a picture: the mask, and time
beside dense attention as sequences grow.

Run it with ``python examples/bigbird.py --plot bigbird.png``.
"""

import argparse

import matplotlib.pyplot as plt
import torch
from torch.utils.benchmark import Timer

import scorch
from scorch._src.nn import masks

parser = argparse.ArgumentParser(description="BigBird's attention")
parser.add_argument("--quick", action="store_true", help="short sequences")
parser.add_argument("--plot", metavar="FILE", help="save the picture")
options = parser.parse_args()
lengths = [64, 128, 256] if options.quick else [256, 512, 1024, 2048, 4096]
seconds = 0.01 if options.quick else 0.3  # to measure for
draw = torch.Generator().manual_seed(0)
torch.manual_seed(0)

# %%
# The mask
# --------
# It lists the pairs that attend. Masks unite with ``|`` and intersect with ``&``; ``bigbird`` is made of
# parts like these.

n = 256
whole = masks.bigbird(n, generator=draw)
parts = masks.global_tokens(n, 2) | masks.window(n, 32) | masks.random_blocks(n, 16, 2, generator=draw)
print(f"bigbird: {whole.nnz:,} pairs; put together by hand: {parts.nnz:,}; all: {n * n:,}")

# %%
# A layer
# -------
# ``scorch.nn.MultiheadAttention`` has torch's arguments and parameters, and takes ``pairs``, the pairs that
# attend; torch's ``attn_mask`` says which do not. Both layers have the same weights here.

layer = scorch.nn.MultiheadAttention(256, 4, batch_first=True).eval()
dense = torch.nn.MultiheadAttention(256, 4, batch_first=True).eval()
dense.load_state_dict(layer.state_dict())
x = torch.randn(2, n, 256)
with torch.no_grad():
    found = layer(x, x, x, pairs=whole)[0]
    wanted = dense(x, x, x, attn_mask=~whole.to_dense(), need_weights=False)[0]
torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
print("sparse and dense attention agree")

# %%
# Longer sequences
# ----------------
# Dense attention is measured with the mask, and without any, which is less work for torch. The pairs of
# BigBird's mask grow with the length, all pairs with its square.

names = ["dense, masked", "dense, all pairs", "sparse"]
times: dict[str, list[float]] = {name: [] for name in names}
print(f"\n{'tokens':>7} {'pairs':>10} {'of all':>7}" + "".join(f"{name:>20}" for name in names))
for n in lengths:
    mask = masks.bigbird(n, generator=draw)
    refused, x = ~mask.to_dense(), torch.randn(1, n, 256)
    calls = {
        "dense, masked": lambda: dense(x, x, x, attn_mask=refused, need_weights=False),  # noqa: B023 - called here
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
# The picture
# -----------

figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.2), layout="constrained")
scorch.spy(whole, axes[0], cmap="Blues", vmax=1)
axes[0].set(title=f"who sees whom: {whole.density:.0%} of all pairs", xlabel="key", ylabel="query")
for name, values in times.items():
    axes[1].loglog(lengths, values, marker="o", label=name)
axes[1].set(title="one layer, 4 heads of 64", xlabel="tokens", ylabel="milliseconds")
axes[1].set(xticks=lengths, xticklabels=lengths)
axes[1].minorticks_off()
axes[1].legend()
if options.plot:
    figure.savefig(options.plot, dpi=120)
