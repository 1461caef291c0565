"""Functions that move entries: views, indexing, joins, scatters."""
