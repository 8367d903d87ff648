"""What a report looks like: one module a format; each reads the findings alone."""
