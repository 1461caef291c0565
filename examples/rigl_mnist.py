"""
Dynamic sparse training with RigL
=================================

A network with 5% of the weights learns digits with RigL: at intervals, the smallest weights are dropped
and new ones grow where the gradient is largest. A dense network is trained for comparison. Ends with a
table and a plot of the sparsity pattern of the first layer before and after training: its weights move to
where the digits are.

Run it with ``python examples/rigl_mnist.py --data DIR --plot rigl.png``.

``DIR`` contains ``images/mnist.npz``. Without it, the digits are synthetic.
"""

import argparse
import itertools
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F

import scorch

parser = argparse.ArgumentParser(description="RigL compared with dense training")
parser.add_argument("--data", type=Path, metavar="DIR", help="folder with images/mnist.npz")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--sparsity", type=float, default=0.95)
parser.add_argument("--growth", choices=["gradient", "random"], default="gradient", help="RigL or SET")
parser.add_argument("--widths", type=int, nargs="+", default=[784, 512, 256, 10])
parser.add_argument("--quick", action="store_true", help="few images, a narrow network, two epochs")
parser.add_argument("--plot", metavar="FILE", help="save the plot")
options = parser.parse_args()
count = 1000 if options.quick else 10_000
epochs, widths = (2, [784, 64, 10]) if options.quick else (options.epochs, options.widths)
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


if options.data is not None:
    with np.load(options.data / "images" / "mnist.npz") as file:
        x, test_x = (torch.from_numpy(file[f"{part}_x"][:count]).float() / 255 for part in ("train", "test"))
        y, test_y = (torch.from_numpy(file[f"{part}_y"][:count]).long() for part in ("train", "test"))
else:
    print("No --data given: using synthetic seven-segment digits, not MNIST.")
    (x, y), (test_x, test_y) = calculator_digits(count), calculator_digits(count)
mean_image = x.mean(0)
x, test_x = ((part.reshape(count, 784) - x.mean()) / x.std() for part in (x, test_x))

# %%
# Two networks
# ------------
# The sparse network starts with a random sparsity pattern, denser in small layers (``erk``). Weights,
# gradients and Adam's state exist only for its nonzeros.

layers: list[torch.nn.Module] = []
for inputs, outputs in itertools.pairwise(widths):
    layers += [torch.nn.ReLU()] * bool(layers) + [torch.nn.Linear(inputs, outputs)]
dense = torch.nn.Sequential(*layers)
sparse = scorch.sparsify(dense, options.sparsity, method="random", distribution="erk", prefer="size")
for layer in sparse[::2]:
    layer.reset_parameters()  # scaled to the nonzeros of each row


def weights_at_pixels() -> torch.Tensor:
    """Count the weights of the first layer that read each pixel."""
    return torch.bincount(sparse[0].weight.col_indices(), minlength=784).reshape(28, 28)


before = weights_at_pixels()

# %%
# Train
# -----
# RigL only needs ``exchange.step()`` after ``optimizer.step()``.


def train(name: str, model: torch.nn.Module) -> tuple[float, int, float]:
    """Return the accuracy in percent, bytes of weights, gradients and optimizer, and ms per step."""
    steps = epochs * -(-count // 128)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    kind = scorch.nn.RigL if options.growth == "gradient" else scorch.nn.SET
    every = max(2, min(50, steps // 10))
    is_sparse = model is sparse
    exchange = None
    if is_sparse:
        exchange = kind(model, optimizer, update_every=every, stop_step=max(2, steps * 3 // 4), fraction=0.3)
    times = []
    for epoch in range(epochs):
        for part in torch.randperm(count).split(128):
            start = time.perf_counter()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[part]), y[part], label_smoothing=0.05)
            loss.backward()
            optimizer.step()
            if exchange is not None:
                exchange.step()
            schedule.step()
            times.append(time.perf_counter() - start)
        with torch.no_grad():
            accuracy = float((model(test_x).argmax(1) == test_y).float().mean()) * 100
        print(f"{name}: epoch {epoch + 1}, accuracy {accuracy:.1f}%, {sum(times):.1f} s", flush=True)
    kept = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
    kept += [
        value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)
    ]
    return accuracy, sum(t.numel() * t.element_size() for t in kept), float(np.median(times)) * 1e3


results = {name: train(name, model) for name, model in (("dense", dense), ("sparse", sparse))}
print(f"\n{'':12} {'accuracy':>9} {'bytes':>12} {'per step':>9}")
for name, (accuracy, size, ms) in results.items():
    print(f"{name:12} {accuracy:>7.2f} % {size:>12,} {ms:>6.2f} ms")

# %%
# Where the weights went
# ----------------------

figure, axes = plt.subplots(1, 3, figsize=(9.5, 3.2), layout="constrained")
after = weights_at_pixels()
axes[0].imshow(mean_image, cmap="Greys")
for ax, image in ((axes[1], before), (axes[2], after)):
    picture = ax.imshow(image, cmap="viridis", vmin=0, vmax=int(torch.quantile(after.float(), 0.99)))
figure.colorbar(picture, ax=axes[1:], label="weights per pixel")
for ax, title in zip(axes, ("mean of all images", "weights before training", "after training"), strict=True):
    ax.set(title=title, xticks=[], yticks=[])
if options.plot:
    figure.savefig(options.plot, dpi=120)
