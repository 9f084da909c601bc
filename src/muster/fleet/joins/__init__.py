"""Gradual joins: opens new nodes to pods only as fast as the API server can take."""
