"""Lower a plan to loops: merge levels, look up operands, assemble the result."""
