"""Peers: caches of one gang prove their job with tickets, and fetch blocks from each other."""
