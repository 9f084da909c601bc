"""Providers of blocks: objects of the API server, AWS, Azure."""
