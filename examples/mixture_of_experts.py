"""
Mixture of experts
==================

Each token is routed to two of sixteen experts. The routing is a sparse matrix with one row per token and
one column per expert. A small mixture learns a function that differs from region to region, and the plot
shows that each region gets its own experts. Ends with a table of the time compared with running all
experts.

Run it with ``python examples/mixture_of_experts.py --plot experts.png``.
"""

import argparse

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch.utils.benchmark import Timer

import scorch

parser = argparse.ArgumentParser(description="A mixture of experts")
parser.add_argument("--quick", action="store_true", help="few steps")
parser.add_argument("--plot", metavar="FILE", help="save the plot")
options = parser.parse_args()
steps, seconds = (20, 0.01) if options.quick else (250, 0.2)  # training steps, and measuring time
torch.manual_seed(0)

# %%
# The data
# --------
# Tokens come from eight regions, and each region has its own linear map.

regions, features = 8, 32
centers = 3 * torch.randn(regions, features)
maps = torch.randn(regions, features, features) / features**0.5


def tokens(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    region = torch.arange(count) * regions // count  # sorted, for the plot
    x = centers[region] + torch.randn(count, features)
    return x, torch.einsum("ti,tij->tj", x, maps[region]), region


# %%
# Train
# -----
# ``balance_loss`` is added with a small factor, so that every expert gets some tokens.

layer = scorch.nn.MoE(features, experts=16, k=2, hidden=64)
optimizer = torch.optim.Adam(layer.parameters(), lr=3e-3)
for step in range(1, steps + 1):
    x, wanted, _ = tokens(512)
    optimizer.zero_grad()
    loss = F.mse_loss(layer(x), wanted)
    (loss + 0.01 * layer.balance_loss).backward()
    optimizer.step()
    if step % (steps // 5) == 0:
        print(f"step {step}: loss {loss.item():.3f}, balance {layer.balance_loss.item():.2f} (1 is balanced)")

# %%
# The routing matrix
# ------------------
# It is csr with two nonzeros per row: the probabilities of the chosen experts, which sum to one.

x, wanted, region = tokens(512)
with torch.no_grad():
    gates = layer.gate(x)
    everything = torch.stack([expert(x) for expert in layer.experts], 1)  # all experts on all tokens
    torch.testing.assert_close(
        layer(x), torch.einsum("te,tef->tf", gates.to_dense(), everything), rtol=1e-4, atol=1e-5
    )
print(gates)
print("the mixture agrees with running all experts and weighting them")

figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained", width_ratios=[1, 1.1])
picture = axes[0].imshow(gates.to_dense(), aspect="auto", cmap="Blues", interpolation="nearest")
axes[0].set(title="routing matrix", xlabel="expert", ylabel="token, sorted by region")
figure.colorbar(picture, ax=axes[0], label="weight")
share = torch.zeros(regions, 16).index_add_(0, region, gates.to_dense()) / (512 // regions)
axes[1].imshow(share, aspect="auto", cmap="Blues", vmin=0)
for r, e in (share >= 0.1).nonzero().tolist():
    axes[1].text(
        e,
        r,
        f"{share[r, e]:.1f}",
        ha="center",
        va="center",
        fontsize=8,
        color="white" if share[r, e] > 0.5 else "black",
    )
axes[1].set(
    title="fraction routed to each expert, by region",
    xlabel="expert",
    ylabel="region",
    xticks=range(0, 16, 2),
)
if options.plot:
    figure.savefig(options.plot, dpi=120)

# %%
# Time
# ----
# A token costs as much as two experts, no matter how many there are; what grows with their number is the
# weights to read, and each expert gets fewer tokens at once.

print(f"\n{'experts':>8} {'all on all tokens':>20} {'two of them':>14}")
x = torch.randn(256 if options.quick else 512, 128)
for count in (4, 8, 16, 32):
    mixture = scorch.nn.MoE(128, experts=count, k=2).eval()

    def all_experts(mixture: scorch.nn.MoE = mixture) -> torch.Tensor:
        weights = torch.softmax(mixture.gate.score(x), -1)
        return sum(weights[:, e, None] * expert(x) for e, expert in enumerate(mixture.experts))

    with torch.no_grad():
        spent = [
            Timer("f()", globals={"f": f}, num_threads=torch.get_num_threads())
            .blocked_autorange(min_run_time=seconds)
            .median
            for f in (all_experts, lambda mixture=mixture: mixture(x))
        ]
    print(f"{count:>8} {spent[0] * 1e3:>17.1f} ms {spent[1] * 1e3:>11.1f} ms")
