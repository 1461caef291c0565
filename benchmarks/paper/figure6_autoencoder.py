"""Figure 6: inference of sparse autoencoders on MNIST, Fashion-MNIST, grey CIFAR-10 and 64 x 64 faces.

    python -m benchmarks.paper.figure6_autoencoder --data DIR [--threads N] [--json FILE] [--plot FILE]

A linear encoder (pixels to 256, ReLU) and a dense decoder (sigmoid), trained once for 10 epochs (mean
squared error, Adam with a learning rate of 0.01, batches of 64). As in the paper what is timed is a pass over
the test set in batches: the images are converted to CSR, encoded, decoded, and the loss is computed. The
faces are made up: smooth ovals on black, of CelebA's shape.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import scorch
from benchmarks.paper.download import fetch_images
from benchmarks.paper.running import Report, Row, agreeing, contest, finished, parser, progress, started

warnings.filterwarnings("ignore", message="Sparse")

SETS = {
    "MNIST": "mnist",
    "Fashion-MNIST": "fashion_mnist_test5k",
    "CIFAR-10, grey": "cifar10_gray",
    "faces": "",
}
SIDES = {"MNIST": 28, "Fashion-MNIST": 28, "CIFAR-10, grey": 32, "faces": 64}
CODE, BATCH = 256, 64


@dataclass(frozen=True)
class Images:
    """Rows of pixels between 0 and 1."""

    train: torch.Tensor
    test: torch.Tensor
    source: str


class Autoencoder(torch.nn.Module):
    """A code of 256 numbers for each image; images may be sparse."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.encoder = torch.nn.Linear(pixels, CODE)
        self.decoder = torch.nn.Linear(CODE, pixels)

    def forward(self, images: Any) -> torch.Tensor:
        code = torch.relu(images @ self.encoder.weight.t() + self.encoder.bias)
        return torch.sigmoid(self.decoder(code))


def load(name: str, options: argparse.Namespace) -> Images:
    file = SETS[name]
    if file and options.download:
        fetch_images(file, options.data)
    path = None if options.data is None or not file else options.data / "images" / f"{file}.npz"
    count = 256 if options.quick else 5000
    if path is None or not path.is_file():
        pixels = made_up(name, 2 * count)
        return Images(pixels[:count], pixels[count:], "made up")
    return read(path, count)


def read(path: Path, count: int) -> Images:
    with np.load(path) as file:
        parts = {
            key: torch.from_numpy(file[key]).flatten(1).float() / 255 for key in file.files if "_x" in key
        }
    test = parts["test_x"]
    train = parts.get("train_x")
    if train is None:  # only a test set is there: its second half is learned
        half = test.shape[0] // 2
        train, test = test[half:], test[:half]
    return Images(train[:count], test[:count], str(path.name))


def made_up(name: str, count: int) -> torch.Tensor:
    """Smooth blobs with as many black pixels as the set has: none in CIFAR-10, most in MNIST."""
    side = SIDES[name]
    draw = torch.Generator().manual_seed(0)
    y, x = torch.meshgrid(torch.linspace(-1, 1, side), torch.linspace(-1, 1, side), indexing="ij")
    blobs = 1 if name == "faces" else 3
    centres = torch.rand(count, blobs, 2, 1, 1, generator=draw) * 0.8 - 0.4
    widths = 0.3 + 0.4 * torch.rand(count, blobs, 2, 1, 1, generator=draw)
    if name == "MNIST":
        widths *= 0.4
    apart = ((x - centres[:, :, 0]) / widths[:, :, 0]) ** 2 + ((y - centres[:, :, 1]) / widths[:, :, 1]) ** 2
    pixels = (1 - apart).clamp(min=0).sum(1).clamp(max=1)
    if name.startswith("CIFAR"):
        pixels = 0.1 + 0.9 * pixels
    return pixels.flatten(1)


def trained(images: Images, epochs: int, what: str) -> Autoencoder:
    model = Autoencoder(images.train.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in progress(range(epochs), f"{what}: training"):
        for rows in torch.randperm(images.train.shape[0]).split(BATCH):
            optimizer.zero_grad()
            batch = images.train[rows]
            F.mse_loss(model(batch), batch).backward()
            optimizer.step()
    return model.eval()


def contestants(model: Autoencoder, images: Images) -> dict[str, Callable[[], torch.Tensor]]:
    """The mean loss over the test set, with every batch converted to CSR (or COO, or not at all)."""
    batches = images.test.split(BATCH)

    def loss(convert: Callable[[torch.Tensor], Any]) -> Callable[[], torch.Tensor]:
        def run() -> torch.Tensor:
            total = torch.zeros(())
            for batch in batches:
                total += F.mse_loss(model(convert(batch)), batch) * batch.shape[0]
            return total / images.test.shape[0]

        return run

    return {
        "Scorch": loss(lambda batch: scorch.from_torch(batch, format="csr")),
        "torch CSR": loss(lambda batch: batch.to_sparse_csr()),
        "torch COO": loss(lambda batch: batch.to_sparse_coo()),
        "dense": loss(lambda batch: batch),
    }


def measure(name: str, options: argparse.Namespace, report: Report) -> None:
    images = load(name, options)
    report.sources[name] = images.source
    model = trained(images, 1 if options.quick else 10, name)
    with torch.no_grad():
        calls, left_out = agreeing(contestants(model, images), tolerance=1e-4)
        times = contest(
            calls, 1 if options.quick else options.runs, 0 if options.quick else 5, f"{name}: timing"
        )
        facts = {"loss": float(calls["Scorch"]()), "nonzero": float((images.test != 0).double().mean())}
    report.rows.append(Row(name, f"{images.test.shape[0]} images", times, facts=facts, left_out=left_out))


def main(arguments: Sequence[str] | None = None) -> int:
    options_of = parser(__doc__.splitlines()[0])
    options_of.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    options = options_of.parse_args(arguments)
    report = started(options, "Figure 6: sparse autoencoders")
    for name in options.sets:
        measure(name, options, report)
    return finished(report, options)


if __name__ == "__main__":
    raise SystemExit(main())
