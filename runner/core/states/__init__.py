"""States of sequences that outlive their runner: names, format, cost and budgets."""
