"""Fuse several statements into one kernel."""
