"""Logs of containers: read and compressed."""
