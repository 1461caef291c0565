"""Prune a wide network, store its weights sparse where that is faster, and compare time and files.

python examples/prune_mlp.py [--width 4096] [--sparsity 0.9]
"""

from __future__ import annotations

import argparse
import io

import torch

import scorch
from scorch.nn.timing import fastest


def file_size(model: torch.nn.Module) -> int:
    """The bytes of a file with the model."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return file.tell()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--sparsity", type=float, default=0.9)
    options = parser.parse_args()
    torch.manual_seed(0)
    n = options.width
    dense = torch.nn.Sequential(
        torch.nn.Linear(n, n), torch.nn.ReLU(), torch.nn.Linear(n, n), torch.nn.ReLU(), torch.nn.Linear(n, n)
    )
    sparse = scorch.sparsify(dense, sparsity=options.sparsity)
    scorch.report(sparse)
    for batch in (1, 32):
        x = torch.randn(batch, n)
        times = fastest({"dense": lambda: dense(x), "sparse": lambda: sparse(x)})  # noqa: B023 - called here
        print(
            f"batch {batch:2}: dense {times['dense'] * 1e3:.2f} ms, sparse {times['sparse'] * 1e3:.2f} ms, "
            f"{times['dense'] / times['sparse']:.1f} x as fast"
        )
    print(f"file: {file_size(sparse) / file_size(dense):.2f} of the dense one")

    loaded = scorch.nn.load_sparse(dense, sparse.state_dict())  # a file keeps which layers are sparse
    assert torch.equal(loaded(x), sparse(x))


if __name__ == "__main__":
    main()
