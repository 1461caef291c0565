"""Machines that run kernels."""
