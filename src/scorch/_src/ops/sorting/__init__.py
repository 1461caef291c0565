"""Sorting and selecting."""
