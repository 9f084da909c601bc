"""Failure drills: breaking things on purpose, on clusters that exist for it."""
