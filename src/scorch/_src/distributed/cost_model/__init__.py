"""What products over processes move, hold and take: predicted from a pattern, or from degrees."""
