"""Checkpoints of sharded tensors, which any number of processes read."""
