"""Writes reference pages from the code."""
