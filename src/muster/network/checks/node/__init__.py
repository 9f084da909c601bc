"""Checks that a node makes about its own network, without capabilities."""
