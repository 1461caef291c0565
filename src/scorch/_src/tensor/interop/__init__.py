"""Convert from and to torch's layouts, SciPy and graphs."""
