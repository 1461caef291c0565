"""Kernels on CUDA devices."""
