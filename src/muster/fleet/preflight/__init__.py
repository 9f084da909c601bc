"""Preflight: GPUs are tested before work comes to a node, again when it is idle, and before it leaves quarantine."""
