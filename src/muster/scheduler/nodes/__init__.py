"""Nodes, grouped by what they offer and what they have left."""
