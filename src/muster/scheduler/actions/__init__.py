"""Executes plans: writes binds, placements, evictions, volumes and Events."""
