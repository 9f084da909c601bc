"""Batch autoscaler: whole gangs get nodes, nodes that stay idle are given back (docs/fleet.md, "Scaling")."""
