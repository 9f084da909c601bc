"""Proves that a store holds everything that was written before a moment.

A consistent list gives a version that is at least as new as the moment. An event or bookmark shows that the store has
reached this version. kube-apiserver sends bookmarks only each minute, and about 2 s before a watch's timeout
(storage/cacher, nextBookmarkTime). So if nothing comes soon, a short second watch gets a bookmark, in about a second.
For a small kind, a WatchList gets the whole state, in about a tenth of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from muster.kube.errors import ApiError, ConfigError, Invalid
from muster.kube.protobuf import WireError
from muster.readcache.freshness import NotFresh
from muster.readcache.hub.item import item_of
from muster.readcache.hub.store import OutOfOrder
from muster.readcache.upstream.follower import Follower
from muster.readcache.upstream.initial import InitialState
from muster.readcache.upstream.rounds import Rounds
from muster.readcache.wire.format import BOOKMARK

_FAILURES: Final = (ApiError, ConfigError, WireError, OutOfOrder, NotFresh, TimeoutError)


@dataclass(frozen=True, slots=True)
class FreshSettings:
    """Limits of proofs.

    Attributes:
        small_bytes: kinds with less are proven by a WatchList.
        event_s: time for an event or bookmark of the main watch, before other means are used.
        probe_timeout_s: timeout of the short watch. With less than 3, kube-apiserver sends no bookmark.
        request_s: limit for one request.
        again_s: pause after a short watch that failed.
    """

    small_bytes: int = 256 * 1024
    event_s: float = 0.15
    probe_timeout_s: int = 3
    request_s: float = 10.0
    again_s: float = 0.5


class Freshness:
    """Proofs about the store of one follower. Calls share proofs, but never one that began before the call.

    Args:
        follower: fills the store.
        settings: limits.
    """

    def __init__(self, follower: Follower, settings: FreshSettings | None = None) -> None:
        self._follower = follower
        self._settings = settings or FreshSettings()
        self._versions = Rounds(self._newest_version, _FAILURES)
        self._states = Rounds(self._newest_state, _FAILURES)
        self._wanted: list[int] = []
        self._prober: asyncio.Task[None] | None = None
        self._probe_error: Exception | None = None

    async def confirm(self, timeout_s: float) -> int:
        """Wait until the store holds everything that was written before this call.

        Returns:
            the version that is proven. The store's own version is older if the API server's state was found equal.

        Raises:
            NotFresh: there is no proof within `timeout_s`, or the API server cannot be asked.
        """
        counters = self._follower.counters
        try:
            async with asyncio.timeout(timeout_s):
                how, version = await self._confirm()
        except _FAILURES as error:
            counters.not_fresh += 1
            if isinstance(error, TimeoutError):
                why = f": {self._probe_error}" if self._probe_error is not None else ""
                raise NotFresh(f"no proof within {timeout_s:g} s that the cache is fresh{why}") from None
            raise NotFresh(f"the API server cannot confirm that the cache is fresh: {error}") from error
        counters.proofs[how] += 1
        return max(version, self._follower.store.version)

    async def close(self) -> None:
        """Stop all requests."""
        await self._versions.close()
        await self._states.close()
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.wait([self._prober])

    async def _confirm(self) -> tuple[str, int]:
        """Prove it. Returns how, for the counters, and the version."""
        store = self._follower.store
        if store.synced and store.objects.bytes < self._settings.small_bytes and self._follower.has_watch_list:
            try:
                version, state = await self._states.result()
            except Invalid as error:
                self._follower.miss_watch_list(error)
            else:
                return await self._equal(version, state), version
        version = await self._versions.result()
        return await self._reach(version), version

    async def _newest_version(self) -> int:
        before = self._follower.store.version
        async with asyncio.timeout(self._settings.request_s):
            version = await self._follower.source.newest_version(self._settings.request_s)
        self._check(before, version)
        return version

    async def _newest_state(self) -> tuple[int, dict[str, int]]:
        """Read the whole state. Returns its version, and the version of each object."""
        follower, initial = self._follower, InitialState(self._follower.wire)
        before = follower.store.version
        timeout_s = self._settings.request_s
        watch = follower.source.watch(
            None, timeout_s=self._settings.probe_timeout_s, stall_s=timeout_s, on_open=_nothing
        )
        async with asyncio.timeout(timeout_s), aclosing(watch) as batches:
            async for frames in batches:
                for frame in frames:
                    if frame.type != BOOKMARK:
                        initial.take(frame)
                    elif frame.initial_end:
                        self._check(before, frame.version)
                        return frame.version, self._versions_of(initial.objects())
        raise NotFresh("the initial events of a watch did not end")

    def _versions_of(self, datas: Iterable[bytes]) -> dict[str, int]:
        head = self._follower.wire.head
        return {item.key: item.version for item in (item_of(head(data), data) for data in datas)}

    def _check(self, before: int, version: int) -> None:
        """A consistent read is never older than what the store had when it was sent, unless etcd was restored."""
        if version < before:
            self._follower.went_back(version)
            raise NotFresh(f"the API server went back from version {before} to {version}")

    async def _equal(self, version: int, state: dict[str, int]) -> str:
        """Wait until the store has exactly this state, or its version.

        The store's version stays: objects that were created and deleted on the way may still be in the main watch.
        """
        store = self._follower.store
        newest = max(state.values(), default=0)
        loop = asyncio.get_running_loop()
        end = loop.time() + self._settings.event_s
        while store.version < version:
            if store.version >= newest and state == {key: each.version for key, each in store.objects.items.items()}:
                return "state"
            if not await store.wait_for(store.version + 1, max(0.0, end - loop.time())):
                return await self._reach(version)
        return "event"

    async def _reach(self, version: int) -> str:
        """Wait until the store has reached a version."""
        store = self._follower.store
        if store.version >= version:
            return "known"
        if await store.wait_for(version, self._settings.event_s):
            return "event"
        self._wanted.append(version)
        try:
            if self._prober is None or self._prober.done():
                self._prober = asyncio.create_task(self._probe_while_wanted())
            while not await store.wait_for(version, self._settings.request_s):
                pass
        finally:
            self._wanted.remove(version)
        return "probe"

    async def _probe_while_wanted(self) -> None:
        store = self._follower.store
        self._probe_error = None
        while self._wanted and max(self._wanted) > store.version:
            if not store.synced:
                await asyncio.sleep(self._settings.again_s)
                continue
            try:
                async with asyncio.timeout(self._settings.request_s):
                    await self._probe()
                    if self._wanted and max(self._wanted) > store.version:
                        # Another API server has answered; a list makes its cache catch up with etcd.
                        await self._follower.source.newest_version(self._settings.request_s)
            except _FAILURES as error:
                self._probe_error = error
                if isinstance(error, OutOfOrder | WireError):
                    self._follower.reload("out of order" if isinstance(error, OutOfOrder) else "garbage")
                await asyncio.sleep(self._settings.again_s)

    async def _probe(self) -> None:
        """Feed the store from a second watch, until its bookmark."""
        follower, timeout_s = self._follower, self._settings.probe_timeout_s
        watch = follower.source.watch(
            follower.store.version, timeout_s=timeout_s, stall_s=timeout_s + 2.0, on_open=_nothing
        )
        follower.counters.probes += 1
        async with aclosing(watch) as batches:
            async for frames in batches:
                for frame in frames:
                    follower.feed.take(frame)
                if frames[-1].type == BOOKMARK or max(self._wanted, default=0) <= follower.store.version:
                    return


def _nothing() -> None:
    pass
