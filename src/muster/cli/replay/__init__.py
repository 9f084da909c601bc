"""`muster simulate`."""
