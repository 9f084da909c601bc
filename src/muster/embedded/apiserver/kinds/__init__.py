"""Strategies of built-in kinds whose behaviour differs from the default."""
