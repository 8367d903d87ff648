"""Trainings by the frameworks that people train with, and what the records of them prove."""
