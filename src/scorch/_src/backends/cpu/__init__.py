"""Kernels as C: compile, load, keep and call them."""
