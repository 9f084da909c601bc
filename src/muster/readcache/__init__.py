"""A cache for get, list and watch in front of the API server, which clients cannot tell from the API server."""
