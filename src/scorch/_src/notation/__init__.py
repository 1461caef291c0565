"""Index notation: rewrites of statements before they are compiled."""
