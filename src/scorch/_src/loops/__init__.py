"""The loop language that kernels are written in before they are printed, and what it means."""
