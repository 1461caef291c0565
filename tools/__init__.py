"""Commands for those who work on Scorch."""
