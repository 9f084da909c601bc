"""Addresses of pods on one node: a durable store, a warm pool, providers of blocks, and a reconciler."""
