"""Pods on the node: admission, running, status."""
