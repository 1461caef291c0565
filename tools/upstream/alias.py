"""A pytest plugin: ``import torch_sparse`` means ``scorch.compat.torch_sparse`` from the start."""

from scorch.compat import torch_sparse

torch_sparse.install()
