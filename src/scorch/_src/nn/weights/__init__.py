"""Sparse weights of layers: their values and patterns, in memory and in files."""
