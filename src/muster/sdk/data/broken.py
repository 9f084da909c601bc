"""Errors of the streaming reader. Each names the shard."""

from __future__ import annotations

from muster.sdk.data.errors import StoreError


class BrokenShard(StoreError):
    """A shard is truncated, damaged, or not in the expected format."""


class BadCursor(ValueError):
    """The cursor does not belong to this stream; the message says what differs."""


class DecodeFailed(Exception):
    """The program's own `decode` failed for a sample. The cause is attached."""
