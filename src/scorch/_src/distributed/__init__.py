"""Sparse tensors whose rows are sharded over the ranks of a ``DeviceMesh``."""
