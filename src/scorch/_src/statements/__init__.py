"""Statements on tensors: how einsum and evaluate run them."""
