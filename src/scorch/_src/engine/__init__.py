"""Run a step: plan it, find its kernel, allocate the result, call."""
