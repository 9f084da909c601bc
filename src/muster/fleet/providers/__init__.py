"""Providers of nodes: `base` defines the interface, and each other module implements one provider."""
