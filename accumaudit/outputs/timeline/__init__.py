"""A run attempt by attempt, with what the rules found at each: `accumaudit show`."""
