"""Measures how fast thousands of gang pods that appear at once are bound: Muster, its peers, the API server's limit."""
