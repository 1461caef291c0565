"""
Prune a trained network
=======================

Train a network on digits and prune it by magnitude with ``scorch.sparsify``, from 50% sparsity upwards.
The remaining weights are stored sparsely in the layers where that is faster, as measured on this machine.
Ends with a table and a plot of accuracy, speed and size.

Run it with ``python examples/prune_mlp.py --data DIR --plot pruned.png``.

``DIR`` contains ``images/mnist.npz``. Without it, the digits are synthetic.
"""

import argparse
import copy
import io
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.benchmark import Timer

import scorch

parser = argparse.ArgumentParser(description="Prune a trained network")
parser.add_argument("--data", type=Path, metavar="DIR", help="folder with images/mnist.npz")
parser.add_argument("--width", type=int, default=1024, help="neurons of a hidden layer")
parser.add_argument("--quick", action="store_true", help="few images, a narrow network")
parser.add_argument("--plot", metavar="FILE", help="save the plot")
options = parser.parse_args()
count, epochs, width = (1500, 5, 128) if options.quick else (6000, 3, options.width)
seconds = 0.01 if options.quick else 0.3  # measuring time
torch.manual_seed(0)


def calculator_digits(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noisy, shifted seven-segment digits of 28 x 28 pixels, and their classes."""
    corners = "04060919 04140911 04141719 13150919 14240911 14241719 22240919"  # top, bottom, left, right
    bars = torch.zeros(7, 28, 28)
    for bar, text in zip(bars, corners.split(), strict=True):
        top, bottom, left, right = (int(text[i : i + 2]) for i in range(0, 8, 2))
        bar[top:bottom, left:right] = 1
    lit = "1110111 0010010 1011101 1011011 0111010 1101011 1101111 1010010 1111111 1111011"
    shapes = torch.stack([bars[[i for i in range(7) if digit[i] == "1"]].amax(0) for digit in lit.split()])
    y = torch.randint(10, (count,))
    shifts = torch.randint(-3, 4, (count, 2)).tolist()
    images = [
        shapes[digit].roll(tuple(shift), (0, 1)) for digit, shift in zip(y.tolist(), shifts, strict=True)
    ]
    return (torch.stack(images) + 0.4 * torch.randn(count, 28, 28)).clamp(0, 1), y


# %%
# Train
# -----

if options.data is not None:
    with np.load(options.data / "images" / "mnist.npz") as file:
        x, test_x = (torch.from_numpy(file[f"{part}_x"][:count]).float() / 255 for part in ("train", "test"))
        y, test_y = (torch.from_numpy(file[f"{part}_y"][:count]).long() for part in ("train", "test"))
else:
    print("No --data given: using synthetic seven-segment digits, not MNIST.")
    (x, y), (test_x, test_y) = calculator_digits(count), calculator_digits(count)
x, test_x = x.reshape(count, 784), test_x.reshape(count, 784)

dense = torch.nn.Sequential(
    torch.nn.Linear(784, width), torch.nn.ReLU(),
    torch.nn.Linear(width, width), torch.nn.ReLU(),
    torch.nn.Linear(width, 10),
)  # fmt: skip
optimizer = torch.optim.Adam(dense.parameters(), lr=1e-3)
for epoch in range(epochs):
    for part in torch.randperm(count).split(128):
        optimizer.zero_grad()
        loss = F.cross_entropy(dense(x[part]), y[part])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}")

# %%
# Prune
# -----
# There is no fine-tuning afterwards. Each pruned network is compared with a dense one with the same
# weights. Files preserve which layers are sparse; load them with ``scorch.nn.load_sparse``.


@torch.no_grad()
def measure(model: torch.nn.Module) -> tuple[float, float, float]:
    """Return the accuracy in percent, milliseconds per 32 images, and the file size in MiB."""
    right = (model(test_x).argmax(1) == test_y).float().mean().item() * 100
    timer = Timer("model(x)", globals={"model": model, "x": x[:32]}, num_threads=torch.get_num_threads())
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return right, timer.blocked_autorange(min_run_time=seconds).median * 1e3, file.tell() / 2**20


rows = {0.0: (*measure(dense), "none")}
for sparsity in (0.5, 0.8, 0.9, 0.95, 0.98):
    pruned = scorch.sparsify(dense, sparsity, skip=["4"])  # the last layer is small: keep it dense
    is_sparse = [isinstance(layer, scorch.nn.SparseLinear) for layer in pruned]
    rows[sparsity] = (*measure(pruned), f"{sum(is_sparse)} of 2")
    same = copy.deepcopy(dense)
    with torch.no_grad():
        for layer, sparse in zip(same[::2], pruned[::2], strict=True):
            weight = sparse.weight
            layer.weight.copy_(weight.to_dense() if isinstance(weight, scorch.SparseTensor) else weight)
    torch.testing.assert_close(pruned(x[:32]), same(x[:32]), rtol=1e-4, atol=1e-4)
print("pruned networks agree with dense ones with the same weights")
print("\nsparsity  accuracy   32 images   file size  sparse layers")
for sparsity, (accuracy, ms, size, stored) in rows.items():
    print(f"{sparsity:>8.0%} {accuracy:>8.1f} % {ms:>8.2f} ms {size:>7.2f} MiB  {stored:>13}")

# %%
# Half of the weights can be pruned with little effect on the accuracy; at high sparsity, it drops.

figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
for ax, place, label in zip(
    axes, range(3), ("accuracy, %", "ms for 32 images", "MiB of a file"), strict=True
):
    ax.bar([f"{sparsity:.0%}" for sparsity in rows], [row[place] for row in rows.values()], color=f"C{place}")
    ax.set(xlabel="sparsity", title=label)
if options.plot:
    figure.savefig(options.plot, dpi=120)
