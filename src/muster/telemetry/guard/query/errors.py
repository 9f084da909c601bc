"""Errors of requests that have no price."""

from __future__ import annotations


class BadRequest(ValueError):
    """The request is not valid. It is answered with `status` and `message`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class NotListed(ValueError):
    """The guard does not know what this path costs. It is denied, unless the operator lists it."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is not a path that the guard can price")
        self.path = path
