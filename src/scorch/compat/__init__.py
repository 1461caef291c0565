"""Other libraries' names on Scorch: programs written for them run after changing an import."""
