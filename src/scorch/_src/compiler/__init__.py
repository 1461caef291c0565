"""Statements to loops: one pass a file, in the order of ``pipeline``."""
