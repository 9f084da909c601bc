"""Gangs: their members, their slots, and what decides their order."""
