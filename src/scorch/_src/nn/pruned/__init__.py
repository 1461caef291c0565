"""Layers with sparse weights that ``sparsify`` puts in place of others, and how it chooses."""
