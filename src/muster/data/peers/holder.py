"""What the peer server needs from the node cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple, Protocol

BLOCK_BYTES_MAX = 64 << 20
"""Longest block that peers exchange. The caches' own blocks are shorter (`sdk.data.wire.BLOCK_BYTES`)."""

STORE_CODES = frozenset(
    {"forbidden", "missing", "unavailable", "changed", "bypass", "wrong-store", "no-reader", "readers-left"}
)
"""Codes of `NotHeld`: the peer works, but cannot provide this block."""


class Wanted(NamedTuple):
    """A block of one version of an object. The fields are those of the cache's `Block`, without a scope.

    Attributes:
        store: the store's identity.
        key: the object's key in the bucket.
        version: its ETag or version ID.
        size_bytes: of the object.
        number: of the block in the object.
    """

    store: str
    key: str
    version: str
    size_bytes: int
    number: int


class Held(NamedTuple):
    """Bytes on this node. The receiver calls `close`.

    Attributes:
        descriptor: an open file that begins with the bytes.
        length: number of bytes.
        sha256: their checksum in hex, from when they were written or verified.
        release: called by `close`.
    """

    descriptor: int
    length: int
    sha256: str
    release: Callable[[], None] | None = None

    def close(self) -> None:
        """Close the file, and release what the cache keeps for it."""
        os.close(self.descriptor)
        if self.release is not None:
            self.release()


class NotHeld(Exception):
    """The holder cannot provide a block.

    Attributes:
        code: an error code of `sdk.data.wire`, such as `forbidden` or `unavailable`.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Holder(Protocol):
    """The node cache, as the peer server sees it."""

    async def fetch(self, wanted: Wanted, job: str, deadline_s: float) -> Held:
        """Return the block from the disk or the bucket, with the credentials of a reader of this job. Asks no peers.

        Concurrent calls for one block cause one download. Raises NotHeld.
        """
