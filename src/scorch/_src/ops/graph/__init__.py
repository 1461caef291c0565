"""Message passing on graphs."""
