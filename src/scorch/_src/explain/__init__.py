"""Explain what a call did and what it costs."""
