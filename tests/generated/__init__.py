"""Trainings that nobody ran: healthy ones drawn at random, and faults planted into their records."""
