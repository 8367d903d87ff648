"""Judges runs while they are written: their newest lines by the rules of `check`, in a process of its own."""
