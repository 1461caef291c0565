"""Routines in PyTorch operators, by what they are about; ``backends.routines`` has them all."""
