"""Benches of the cluster's network."""
