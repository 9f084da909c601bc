"""Measures the recovery of a gang after a fault, and its cost for the API server: Muster beside JobSet."""
