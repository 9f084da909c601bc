"""Gangs: members, slots, placements and order."""
