"""Behaviour of built-in kinds that differs from the default."""
