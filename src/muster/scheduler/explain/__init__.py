"""Explains why a gang waits and what would admit it."""
