"""``scorch.compile``: record calls and fuse them into kernels."""
