"""Files, pickles and data loaders."""
