"""Sparse tensors whose rows are sharded over the processes of a ``DeviceMesh``."""
