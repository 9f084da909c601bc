"""Ranks on this node: their shims, output, environment, hooks, stacks and symptoms."""
