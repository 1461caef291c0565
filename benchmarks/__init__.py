"""Benchmarks: each prints a table and the machine it was made on."""
