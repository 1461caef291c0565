"""Layers with sparse weights that ``sparsify`` substitutes for dense ones, and how it chooses."""
