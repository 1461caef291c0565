"""Print the loop language as C."""
