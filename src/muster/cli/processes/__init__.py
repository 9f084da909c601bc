"""Processes that run in a cluster: `muster controller` and `muster admission`."""
