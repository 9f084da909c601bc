"""Pods: requirements, classes, and rules about other pods."""
