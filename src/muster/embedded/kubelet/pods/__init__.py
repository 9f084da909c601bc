"""Pods on the node: taken on, run, reported."""
