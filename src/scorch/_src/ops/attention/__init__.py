"""Attention with sparse masks."""
