"""Chooses nodes for the pods of one gang."""
