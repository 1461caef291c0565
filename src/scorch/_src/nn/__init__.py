"""Layers with sparse weights, pruning and training."""
