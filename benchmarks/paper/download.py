"""Data sets fetched from where their authors keep them, and written as files of the data directory.

Graphs come through PyG and ogb, images through torchvision, texts as archives. What is already there is not
fetched again.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

IMDB = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
AG_NEWS = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/test.csv"


def fetch_graph(name: str, directory: Path) -> Path:
    """``planetoid/NAME.npz`` or ``ogbn_arxiv/ogbn_arxiv.npz``."""
    if name == "arxiv":
        path = directory / "ogbn_arxiv" / "ogbn_arxiv.npz"
        return path if path.is_file() else _write(path, _arxiv(directory))
    path = directory / "planetoid" / f"{name}.npz"
    return path if path.is_file() else _write(path, _planetoid(name, directory))


def fetch_images(name: str, directory: Path) -> Path:
    """``images/NAME.npz``: ``train_x``, ``train_y``, ``test_x``, ``test_y``; colours are made grey."""
    path = directory / "images" / f"{name}.npz"
    return path if path.is_file() else _write(path, _images(name, directory))


def fetch_text(name: str, directory: Path) -> Path:
    """``text/NAME.tsv.gz``: a class, a tab and a text on each line."""
    path = directory / "text" / f"{name}.tsv.gz"
    if path.is_file():
        return path
    rows = _ag_news(_fetched(AG_NEWS)) if name.startswith("ag_news") else _imdb(_fetched(IMDB), name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{label}\t{' '.join(text.split())}\n" for label, text in rows)
    return path


def _write(path: Path, arrays: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)
    return path


def _fetched(address: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            found: bytes = answer.read()
            return found
    except urllib.error.URLError as error:
        raise SystemExit(
            f"cannot fetch {address} ({error.reason}); without --download data is made up"
        ) from None


def _imported(module: str, package: str) -> Any:
    try:
        return __import__(module, fromlist=["_"])
    except ImportError:
        raise SystemExit(f"--download needs {package} for this data set: pip install {package}") from None


# graphs ----------------------------------------------------------------------------------------------


def _planetoid(name: str, directory: Path) -> dict[str, Any]:
    datasets = _imported("torch_geometric.datasets", "torch_geometric")
    data = datasets.Planetoid(str(directory / "fetched"), name.capitalize())[0]
    rows, columns = np.nonzero(data.x.numpy())
    return {
        **_matrix("adj", data.edge_index.numpy(), (data.num_nodes, data.num_nodes)),
        **_matrix("x", np.stack([columns, rows]), tuple(data.x.shape)),
        "x_data": data.x.numpy()[rows, columns].astype(np.float32),
        "y": data.y.numpy().astype(np.int32),
        **{f"{part}_idx": np.flatnonzero(data[f"{part}_mask"].numpy()) for part in ("train", "val", "test")},
    }


def _arxiv(directory: Path) -> dict[str, Any]:
    ogb = _imported("ogb.nodeproppred", "ogb")
    dataset = ogb.NodePropPredDataset("ogbn-arxiv", root=str(directory / "fetched"))
    graph, labels = dataset[0]
    split = dataset.get_idx_split()
    nodes = int(graph["num_nodes"])
    return {
        **_matrix("adj", graph["edge_index"], (nodes, nodes)),
        "y": labels[:, 0].astype(np.int32),
        **{
            f"{part}_idx": split[full]
            for part, full in (("train", "train"), ("val", "valid"), ("test", "test"))
        },
    }


def _matrix(name: str, edges: np.ndarray, shape: tuple[int, ...]) -> dict[str, Any]:
    """CSR of entries given as columns over rows: sources over targets."""
    order = np.lexsort((edges[0], edges[1]))
    counts = np.bincount(edges[1], minlength=shape[0])
    return {
        f"{name}_indptr": np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        f"{name}_indices": edges[0][order].astype(np.int32),
        f"{name}_shape": np.array(shape),
    }


# images ----------------------------------------------------------------------------------------------

_CLASSES = {"mnist": "MNIST", "fashion_mnist_test5k": "FashionMNIST", "cifar10_gray": "CIFAR10"}


def _images(name: str, directory: Path) -> dict[str, Any]:
    datasets = _imported("torchvision.datasets", "torchvision")
    kind = getattr(datasets, _CLASSES[name])
    arrays: dict[str, Any] = {}
    for part in ("train", "test"):
        data = kind(str(directory / "fetched"), train=part == "train", download=True)
        pixels = np.asarray(data.data)
        if pixels.ndim == 4:
            pixels = (pixels @ np.array([0.299, 0.587, 0.114])).round().astype(np.uint8)
        arrays[f"{part}_x"], arrays[f"{part}_y"] = pixels, np.asarray(data.targets)
    return arrays


# texts -----------------------------------------------------------------------------------------------


def _ag_news(found: bytes) -> Iterable[tuple[int, str]]:
    for label, *parts in csv.reader(io.StringIO(found.decode("utf-8"))):
        yield int(label) - 1, " ".join(parts)


def _imdb(found: bytes, name: str) -> Iterable[tuple[int, str]]:
    part = "train" if "train" in name else "test"
    wanted = re.compile(rf"aclImdb/{part}/(neg|pos)/\d+_\d+\.txt")
    with tarfile.open(fileobj=io.BytesIO(found)) as archive:
        for member in archive:
            match = wanted.fullmatch(member.name)
            file = archive.extractfile(member) if match else None
            if match and file is not None:
                yield int(match[1] == "pos"), file.read().decode("utf-8").replace("<br />", " ")
