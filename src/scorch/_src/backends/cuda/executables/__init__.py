"""Compiled statements on CUDA devices: kernels of one step or of several, and how they are called."""
