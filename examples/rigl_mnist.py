"""Train a 95 % sparse network on handwritten digits by RigL, and a dense one beside it.

    python examples/rigl_mnist.py --data DIR [--epochs 30] [--sparsity 0.95] [--growth gradient|random]

DIR has ``images/mnist.npz`` with the arrays train_x, train_y, test_x and test_y. Without it digits are
generated: ten random prototypes with noise, of the same shape, which says nothing about real ones.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import scorch

Split = tuple[torch.Tensor, torch.Tensor]


def digits(folder: Path | None, limit: int | None = None) -> tuple[Split, Split]:
    """Training and test images as rows of 784 numbers, with their classes."""
    file = None if folder is None else folder / "images" / "mnist.npz"
    if file is not None and file.exists():
        arrays = np.load(file)
        found = [(torch.from_numpy(arrays[f"{part}_x"]), arrays[f"{part}_y"]) for part in ("train", "test")]
        splits = [(x.reshape(len(x), -1).float() / 255, torch.from_numpy(y).long()) for x, y in found]
        print(f"MNIST from {file}")
    else:
        print("no mnist.npz: generated digits, ten prototypes with noise")
        prototypes = torch.rand(10, 784)
        splits = []
        for count in (10_000, 2_000):
            y = torch.randint(10, (count,))
            splits.append(((prototypes[y] + torch.randn(count, 784)).clamp(0, 1), y))
    train, test = [(x[:limit], y[:limit]) for x, y in splits]
    mean, spread = train[0].mean(), train[0].std()
    return ((train[0] - mean) / spread, train[1]), ((test[0] - mean) / spread, test[1])


def network(widths: tuple[int, ...]) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for number, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        layers += [torch.nn.ReLU()] * (number > 0) + [torch.nn.Linear(inputs, outputs)]
    return torch.nn.Sequential(*layers)


def train(
    model: torch.nn.Module, splits: tuple[Split, Split], epochs: int, growth: str | None
) -> dict[str, float]:
    """Accuracy in percent, bytes of what is learned and kept for it, and milliseconds a step."""
    (x, y), (test_x, test_y) = splits
    batch = 128
    steps = epochs * -(-len(x) // batch)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    exchange = None
    if growth is not None:
        kind = scorch.nn.RigL if growth == "gradient" else scorch.nn.SET
        exchange = kind(model, optimizer, every=50, until=max(2, steps * 3 // 4), fraction=0.3)
    times = []
    for _ in range(epochs):
        for part in torch.randperm(len(x)).split(batch):
            start = time.perf_counter()
            optimizer.zero_grad()
            F.cross_entropy(model(x[part]), y[part], label_smoothing=0.05).backward()
            optimizer.step()
            if exchange is not None:
                exchange.step()
            schedule.step()
            times.append(time.perf_counter() - start)
    with torch.no_grad():
        accuracy = float((model(test_x).argmax(1) == test_y).float().mean()) * 100
    return {
        "accuracy": accuracy,
        "bytes": learned_bytes(model, optimizer),
        "ms": float(np.median(times)) * 1e3,
    }


def learned_bytes(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Weights with their index arrays, gradients, and what the optimizer keeps."""
    kept = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    for state in optimizer.state.values():
        kept += [value for value in state.values() if torch.is_tensor(value)]
    return sum(tensor.numel() * tensor.element_size() for tensor in [*model.state_dict().values(), *kept])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="the folder that has images/mnist.npz")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--sparsity", type=float, default=0.95)
    parser.add_argument("--growth", choices=["gradient", "random"], default="gradient")
    parser.add_argument("--widths", type=int, nargs="+", default=[784, 1024, 512, 10])
    parser.add_argument("--limit", type=int, help="at most so many images")
    options = parser.parse_args()
    torch.manual_seed(0)
    splits = digits(options.data, options.limit)
    dense = network(tuple(options.widths))
    sparse = scorch.sparsify(dense, options.sparsity, method="random", distribution="erk", prefer="size")
    for layer in sparse:
        if isinstance(layer, scorch.nn.SparseLinear):
            layer.reset_parameters()  # scaled to the entries of each row
    results = {
        "dense": train(dense, splits, options.epochs, None),
        f"{options.sparsity:.0%} sparse": train(sparse, splits, options.epochs, options.growth),
    }
    print(f"{'':12} {'accuracy':>9} {'bytes':>12} {'a step':>9}")
    for name, found in results.items():
        print(f"{name:12} {found['accuracy']:>7.2f} % {found['bytes']:>12,} {found['ms']:>6.2f} ms")


if __name__ == "__main__":
    main()
