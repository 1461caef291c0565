"""Routines in CUDA C, one file each: entries, levels, attention, graphs."""
