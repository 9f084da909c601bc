"""Errors of object stores. Messages name the object and the fix, and never hold a credential."""

from __future__ import annotations


class StoreError(Exception):
    """An object store did not do what was asked.

    Attributes:
        url: the store, without credentials.
        key: the object; "" if the error concerns the whole store.
        reason: a stable code in CamelCase, for programs.
    """

    def __init__(self, message: str, url: str = "", key: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.url = url
        self.key = key
        self.reason = reason or type(self).__name__


class NotFound(StoreError):
    """The object does not exist."""


class Forbidden(StoreError):
    """The credentials do not permit the operation on this object."""


class AlreadyExists(StoreError):
    """A create-only write found an object with this key."""


class ObjectChanged(StoreError):
    """The object is not the one that the caller began to read: its ETag differs."""


class Unavailable(StoreError):
    """The store did not answer successfully before the deadline.

    Attributes:
        attempts: how many requests failed.
    """

    def __init__(self, message: str, url: str = "", key: str = "", attempts: int = 0) -> None:
        super().__init__(message, url, key)
        self.attempts = attempts


class WrongStore(StoreError):
    """The bucket, region, endpoint or credentials do not fit each other; the message says what to change.

    `reason` is WrongURL, WrongEndpoint, WrongBucket, WrongRegion, WrongCredentials, NoCredentials, ClockSkew,
    NoRanges, WrongKey or UnorderedLists.
    """


class NoCreateOnly(StoreError):
    """The store does not refuse a create-only write of an existing object, so checkpoints in it are not safe."""


class ObstoreMissing(StoreError):
    """The package obstore is not installed here, and there is no node cache that could be used instead."""
