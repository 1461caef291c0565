"""Run the loop language in Python, as a second opinion."""
