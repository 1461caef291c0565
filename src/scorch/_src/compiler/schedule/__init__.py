"""Choose the result's format, the order of loops, conversions and workspaces."""
