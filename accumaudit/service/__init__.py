"""The monitoring service: follows runs while they are written, judges them, and shows what it knows."""
