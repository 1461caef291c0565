"""Drop-in replacements for other libraries: change an import, and programs run on Scorch."""
