"""Writes what a plan decided: binds, placements, evictions, volumes and Events."""
