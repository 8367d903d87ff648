"""Trainings in small that really run: a right loop, its faults, and right loops that look like faults."""
