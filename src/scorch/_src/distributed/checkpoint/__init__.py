"""Checkpoints of sharded tensors, which any number of ranks can load."""
