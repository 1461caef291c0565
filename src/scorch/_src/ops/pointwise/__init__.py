"""Functions of one element each."""
