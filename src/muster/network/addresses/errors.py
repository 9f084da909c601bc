"""Errors of the store and of the pool, as CNI reports them."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why the pool has no free address, or may soon have none."""

    WARMING = "Warming"
    """The provider is being asked."""
    COOLING = "Cooling"
    """All free addresses were used a short time ago."""
    NODE_LIMIT = "NodeLimit"
    """The node has as many addresses as its type or its settings allow."""
    SUBNET_FULL = "SubnetFull"
    """The subnet or the pool has no free address."""
    FRAGMENTED = "Fragmented"
    """The subnet has free addresses, but no free block."""
    THROTTLED = "Throttled"
    """The provider refuses because of too many requests."""
    DENIED = "Denied"
    """The node's identity may not assign addresses."""
    MISCONFIGURED = "Misconfigured"
    """The settings do not match what the provider has."""
    UNREACHABLE = "Unreachable"
    """The provider does not answer."""
    DISK = "Disk"
    """The store on the node's disk cannot be written."""


class StoreError(Exception):
    """The store cannot be read or written. The message says what to do."""


class StoreInUse(StoreError):
    """Another process holds the store."""


class Exhausted(Exception):
    """There is no free address for a new pod.

    Attributes:
        reason: why.
        message: the same for people, with what to do.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
