"""Batch autoscaler: adds nodes for whole gangs and deletes idle ones (docs/fleet.md, "Scaling")."""
