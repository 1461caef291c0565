"""Scorch's kernels beside torch's, SciPy's and plain loops, on real matrices."""
