"""Failure to prove that the cache is current."""


class NotFresh(Exception):
    """The cache cannot prove in time that it holds everything written before the request."""
