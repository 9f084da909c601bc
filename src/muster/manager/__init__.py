"""Starts the controllers that run under one lease, and connects those that exchange data."""
