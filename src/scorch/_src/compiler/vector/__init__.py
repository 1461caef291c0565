"""Spread loops over vector lanes and threads."""
