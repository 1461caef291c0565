"""Sums, extremes, norms, softmax and scans."""
