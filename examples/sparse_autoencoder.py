"""
Sparse autoencoders
===================

Images of digits are mostly black, so they are stored as sparse rows. One network compresses each image to
256 numbers; the other uses only 16 of its 256 numbers for each image, so that its codes are sparse too.
Ends with a table and a plot of the reconstructions.

Run it with ``python examples/sparse_autoencoder.py --data DIR --plot autoencoder.png``.

``DIR`` contains ``images/mnist.npz``. Without it, the digits are synthetic.
"""

import argparse
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F

import scorch
from scorch.utils.data import DataLoader, SparseDataset

parser = argparse.ArgumentParser(description="Autoencoders of sparse images")
parser.add_argument("--data", type=Path, metavar="DIR", help="folder with images/mnist.npz")
parser.add_argument("--quick", action="store_true", help="few images, one epoch")
parser.add_argument("--plot", metavar="FILE", help="save the plot")
options = parser.parse_args()
count, epochs = (500, 1) if options.quick else (6000, 6)
torch.manual_seed(0)


def calculator_digits(count: int) -> torch.Tensor:
    """Return shifted seven-segment digits of varying brightness, 28 x 28 pixels."""
    corners = "04060919 04140911 04141719 13150919 14240911 14241719 22240919"  # top, bottom, left, right
    bars = torch.zeros(7, 28, 28)
    for bar, text in zip(bars, corners.split(), strict=True):
        top, bottom, left, right = (int(text[i : i + 2]) for i in range(0, 8, 2))
        bar[top:bottom, left:right] = 1
    lit = "1110111 0010010 1011101 1011011 0111010 1101011 1101111 1010010 1111111 1111011"
    shapes = torch.stack([bars[[i for i in range(7) if digit[i] == "1"]].amax(0) for digit in lit.split()])
    images = shapes[torch.randint(10, (count,))] * (0.5 + 0.5 * torch.rand(count, 1, 1))
    return torch.stack([image.roll(tuple(torch.randint(-4, 5, (2,)).tolist()), (0, 1)) for image in images])


# %%
# Images as sparse rows
# ---------------------

if options.data is not None:
    with np.load(options.data / "images" / "mnist.npz") as file:
        images = torch.from_numpy(file["train_x"][:count]).float() / 255
else:
    print("No --data given: using synthetic seven-segment digits, not MNIST.")
    images = calculator_digits(count)
X = scorch.from_torch(images.reshape(count, 784), format="csr")
print(f"{count:,} images, density {X.density:.0%}")

# %%
# Two networks
# ------------
# The first layer multiplies sparse rows by a dense weight. ``topk_sparse`` keeps the largest values of each
# row as a sparse matrix, and decoding it reads only the rows of the decoder that it needs.


class Autoencoder(torch.nn.Module):
    def __init__(self, k: int | None) -> None:
        super().__init__()
        self.k, self.encoder, self.decoder = k, torch.nn.Linear(784, 256), torch.nn.Linear(256, 784)

    def codes(self, x: torch.Tensor) -> torch.Tensor:
        codes = self.encoder(x).relu()
        return codes if self.k is None else scorch.topk_sparse(codes, self.k)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.codes(x))


models = {"256 numbers": Autoencoder(None), "16 of 256": Autoencoder(16)}
for name, model in models.items():
    torch.testing.assert_close(model(X[:64]), model(X[:64].to_dense()), rtol=1e-4, atol=1e-5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    start = time.perf_counter()
    for epoch in range(epochs):
        total = 0.0
        for (rows,) in DataLoader(SparseDataset(X), batch_size=128, shuffle=True):  # a csr batch
            optimizer.zero_grad()
            loss = F.mse_loss(model(rows), rows.to_dense())
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        print(f"{name}: epoch {epoch + 1}, loss {total / count:.4f}, {time.perf_counter() - start:.1f} s")

# %%
# Results
# -------
# Before training, sparse and dense inputs were checked to give the same results. The table shows how many
# numbers are stored per image, and the mean squared error per pixel.

shown = X[:10]
pictures = {"input": shown.to_dense()}
print(f"\n{'':14}{'stored numbers per image':>28}{'error':>10}")
print(f"{'input':14}{X.nnz / count:>28.1f}{'':>10}")
with torch.no_grad():
    for name, model in models.items():
        codes = model.codes(X)
        stored = codes.nnz if isinstance(codes, scorch.SparseTensor) else codes.numel()
        error = F.mse_loss(model.decoder(codes), X.to_dense())
        print(f"{name:14}{stored / count:>28.1f}{error:>10.4f}")
        pictures[f"from {name}"] = model(shown)

figure, axes = plt.subplots(3, 10, figsize=(9, 3.2), layout="constrained")
for line, (name, rows) in zip(axes, pictures.items(), strict=True):
    line[0].set_ylabel(name, rotation=0, ha="right", va="center")
    for ax, row in zip(line, rows, strict=True):
        ax.imshow(row.reshape(28, 28), cmap="Greys", vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[])
if options.plot:
    figure.savefig(options.plot, dpi=120)
