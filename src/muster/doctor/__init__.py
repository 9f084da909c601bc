"""Finds what endangers a control plane: evidence, cost at ten times the nodes, and the fix."""
