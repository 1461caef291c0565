"""Scorch's kernels beside torch's on a GPU."""
