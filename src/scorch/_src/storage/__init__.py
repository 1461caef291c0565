"""Sparsity patterns and values: the arrays of a sparse tensor."""
