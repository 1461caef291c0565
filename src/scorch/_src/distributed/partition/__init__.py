"""Orders of rows under which processes need few rows of each other."""
