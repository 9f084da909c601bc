"""Predicts run times of gangs, and when waiting gangs start, from the history of ended gangs."""
