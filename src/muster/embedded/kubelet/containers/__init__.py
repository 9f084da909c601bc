"""Containers as processes: start, probes, limits, end."""
