"""Sparse tensors as torch sees them: what they answer and what they refuse."""
