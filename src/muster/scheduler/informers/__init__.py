"""Watches of what the scheduler reads beside pods and nodes."""
