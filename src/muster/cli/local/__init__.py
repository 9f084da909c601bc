"""Clusters on this machine: up, down, demo, fault."""
