"""Compares the read cache's answers with a real API server's, for random requests."""
