"""Communication among ranks: collectives, agreement, budgets, and the routes of rows."""
