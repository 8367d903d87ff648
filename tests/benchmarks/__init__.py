"""Benchmarks: ratios of interleaved runs, printed and never asserted."""
