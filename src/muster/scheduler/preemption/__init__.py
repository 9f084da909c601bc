"""Chooses gangs that leave so that another fits."""
