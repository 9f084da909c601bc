"""Errors of the streaming reader. Each names the shard."""

from __future__ import annotations

from muster.sdk.data.errors import StoreError


class BrokenShard(StoreError):
    """A shard is truncated, damaged, or not in the expected format."""

    def with_fix(self) -> BrokenShard:
        """The same error for a stream that does not skip: its message says what to do."""
        fix = "Restore the shard, or skip damaged samples (bad_shards='skip', muster run --bad-shards skip)"
        return BrokenShard(f"{self}. {fix}", self.url, self.key)


class BadCursor(ValueError):
    """The cursor does not belong to this stream; the message says what differs."""


class DecodeFailed(Exception):
    """The program's own `decode` failed for a sample. The cause is attached."""
