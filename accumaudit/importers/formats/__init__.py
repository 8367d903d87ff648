"""The importers, one module a format; what belongs to one format alone stands beside it."""
