"""CUDA devices: compile, load and launch machine code, wait for it, and predict how long it takes."""
