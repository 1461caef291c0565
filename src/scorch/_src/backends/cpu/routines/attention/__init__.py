"""Sparse attention: the C text, the blocks of queries that share keys, and the calls."""
