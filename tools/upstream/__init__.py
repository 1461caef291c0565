"""Run the test suites of torch_sparse and PyG on ``scorch.compat.torch_sparse``."""
