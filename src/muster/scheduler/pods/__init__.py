"""Pods: what they ask for, and what they ask of other pods."""
