"""``python -m tools.gpu_check``: all that is to be known of a machine with a GPU, by one command."""
