"""Preflight: tests GPUs before a node takes work, while it is idle, and before it leaves quarantine."""
