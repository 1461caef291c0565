"""Routines in torch operations, which run anywhere."""
