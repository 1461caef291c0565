"""What older versions of torch lack, and tests of it are skipped for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from scorch._src.backends.cpu import launch

needs_builtins = pytest.mark.skipif(
    launch.builtins() is None, reason="before torch 2.10 results are made in Python, in more memory"
)
needs_export_of_sparse_arguments = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10),
    reason="torch.export(strict=False) of older torch takes no sparse arguments",
)
needs_sizes_of_numbers = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10), reason="graphs of older torch end at numbers"
)
needs_gradients_outside_graphs = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9),
    reason="torch.compile of torch 2.8 takes the gradient of what it computes for None",
)
needs_linear_cross_entropy = pytest.mark.skipif(
    not hasattr(F, "linear_cross_entropy"), reason="this torch has no linear_cross_entropy"
)
