"""Compares a store with the API server now and then, and loads the state again if they differ.

Both sides are compared at the same version, which the store's event log restores. So changes in the meantime do not
count as differences.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextlib import aclosing
from typing import Final

from muster.kube.errors import ApiError, ConfigError
from muster.kube.protobuf import WireError
from muster.readcache.hub.log import Expired
from muster.readcache.hub.selection import ALL
from muster.readcache.upstream.follower import Follower

log = logging.getLogger(__name__)

PERIOD_S: Final = 600.0
_REACH_S: Final = 90.0
"""Time for the store to reach the version of the list: longer than a minute, the interval of bookmarks."""
_SLICE: Final = 2000
"""Objects that are hashed before other tasks may run."""


class Digest:
    """A hash over objects that does not depend on their order."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0

    def add(self, namespace: str, name: str, version: str) -> None:
        """Include an object."""
        # "/" and "@" are in neither names nor versions
        hashed = hashlib.blake2b(f"{namespace}/{name}@{version}".encode(), digest_size=16).digest()
        self._sum = (self._sum + int.from_bytes(hashed, "big")) % (1 << 128)
        self.count += 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and (self.count, self._sum) == (other.count, other._sum)

    __hash__ = None  # type: ignore[assignment]


class SelfCheck:
    """The self-check of one follower's store.

    Args:
        follower: fills the store, and loads it again if it is wrong.
        period_s: a check follows the last one after 0.9 to 1.1 times this time.
    """

    def __init__(self, follower: Follower, *, period_s: float = PERIOD_S) -> None:
        self._follower = follower
        self._period_s = period_s

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(self._period_s * self._follower.rng.uniform(0.9, 1.1))
            await self.check()

    async def check(self) -> str:
        """Compare once.

        Returns:
            the outcome, as in the counters: `equal`, `different`, `failed` if the API server cannot be asked, or
            `skipped` if the store cannot be had at the version of the list.
        """
        follower = self._follower
        try:
            outcome = await self._compare()
        except (ApiError, ConfigError, WireError) as error:
            log.info("%s: self-check failed: %s", follower.name, error)
            outcome = "failed"
        except Expired:
            outcome = "skipped"
        follower.counters.checks[outcome] += 1
        if outcome == "different":
            follower.reload("self-check")
        return outcome

    async def _compare(self) -> str:
        store, theirs, mine = self._follower.store, Digest(), Digest()
        if not store.synced:
            return "skipped"
        version = 0
        async with aclosing(self._follower.source.identities()) as pages:
            async for snapshot, page in pages:
                version = snapshot
                for namespace, name, of in page:
                    theirs.add(namespace, name, of)
        if not await store.wait_for(version, _REACH_S) or store.version < version:
            return "skipped"
        for number, item in enumerate(store.select(ALL, at=version), 1):
            mine.add(item.namespace, item.name, str(item.version))
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        if mine == theirs:
            return "equal"
        log.warning(
            "%s: the cache has %d objects and differs from the API server, which has %d; loading them again",
            self._follower.name,
            mine.count,
            theirs.count,
        )
        return "different"
