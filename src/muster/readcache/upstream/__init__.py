"""Follows the API server: fills the stores of the cache, proves that they are fresh, and compares them with it."""
