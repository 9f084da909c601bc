"""Chooses victims for a gang that does not fit."""
