"""Faults that people really had, one module each, with a small real training in each runtime that has it.

A module is named after its fault and holds one `FAULT` (registry.py); it is found by lying here. The right
loops that look like faults lie in `traps/`. `scoreboard.py` trains them all, judges them and writes
docs/scoreboard.md.
"""
