"""Routines in C that are not generated: sorting, transposing, attention."""
