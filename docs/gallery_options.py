"""How the gallery shows and calls the examples; ``conf.py`` names these."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

# From simple to whole programs; what is not named here comes last.
ORDER = [
    "first_steps",
    "formats_drawn",
    "matrix_market_scipy",
    "sddmm_fused",
    "reading_explain",
    "prune_mlp",
    "rigl_mnist",
    "sparse_autoencoder",
    "gcn_cora",
    "gat",
    "distributed_gcn",
    "bigbird",
    "mixture_of_experts",
    "new_level_format",
]


def example_arguments(gallery: dict[str, Any], script: dict[str, Any]) -> list[str]:
    """``--data DIR`` where the environment has ``SCORCH_DATA`` and the script takes it; otherwise nothing."""
    folder = os.environ.get("SCORCH_DATA", "")
    takes_data = '"--data"' in Path(script["src_file"]).read_text(encoding="utf-8")
    return ["--data", folder] if folder and takes_data else []


class ExampleOrder:
    """The place of an example in its gallery."""

    def __init__(self, source: str) -> None:
        self.source = source

    def __call__(self, file: str) -> tuple[int, str]:
        name = Path(file).stem
        return (ORDER.index(name) if name in ORDER else len(ORDER), name)
