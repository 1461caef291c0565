"""Orders of rows that keep halos small."""
