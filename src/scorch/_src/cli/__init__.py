"""``python -m scorch``."""
