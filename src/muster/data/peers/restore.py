"""Finds checkpoint shards for a restore: on this node, then on the peers that keep them. Then the bucket is left."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import aclosing
from typing import Final, NamedTuple

from muster.api.cache_ticket import Peer
from muster.data.cache.disk import DiskBypassed
from muster.data.cache.files import Partial
from muster.data.cache.sinks import WriteFailed
from muster.data.peers.client import Connections, announced, is_sha256
from muster.data.peers.frames import Code, PeerError
from muster.data.peers.gangs import Gang, Membership
from muster.data.peers.holder import Held
from muster.data.peers.kept import KeptShards, Refused
from muster.data.peers.shards import Shard
from muster.data.peers.standing import Standing
from muster.data.peers.transfer import Pause, receive_file

START_S: Final = 15.0
"""While an attempt starts, the nodes that may hold shards are waited for, until their first rank has registered."""
_POLL_S: Final = 0.25
_ALONE_S: Final = 2.0
"""The likely holders are asked alone for this long; then the rest of the group is asked too."""
_FRESH_S: Final = 30.0
"""A peer's list of shards is used this long. While a job restores, it does not save."""
_AT_ONCE: Final = 16
_CATALOGS_MAX: Final = 4096
_Task = asyncio.Task[frozenset[str]]


class Found(NamedTuple):
    """A shard on this node, and where it came from: `disk` or `peer`."""

    held: Held
    source: str


class _Catalog(NamedTuple):
    time_s: float
    names: frozenset[str]


class Restorer:
    """Finds shards.

    Args:
        address: IP:PORT of this node, as the peers know it.
        kept: the shards of this node.
        connections: to the peers.
        standing: which peers are skipped.
    """

    def __init__(self, address: str, kept: KeptShards, connections: Connections, standing: Standing) -> None:
        self._address = address
        self._kept = kept
        self._connections = connections
        self._standing = standing
        self._catalogs: dict[tuple[str, int, str], _Catalog] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.outcomes: Counter[str] = Counter()
        """Requests for shards that were not on this node, by outcome: `ok`, `missing`, or the code of an error."""

    async def find(self, member: Membership, shard: Shard, deadline_s: float, pause: Pause) -> Found | None:
        """Return a shard of the member's job; None if neither this node nor a peer provides it in time.

        A shard from a peer stays on this node.
        """
        held = await self._kept.open(shard.uid, shard.key, shard.sha256)
        if held is not None:
            return Found(held, "disk")
        gang = member.gang
        if gang is None or member.ticket.attempt <= 1:  # the first attempt has saved nothing yet
            return None
        try:
            async with asyncio.timeout(deadline_s):
                return await self._from_peers(member, gang, shard, pause)
        except TimeoutError:
            self.outcomes[Code.SLOW] += 1
            return None

    async def _from_peers(self, member: Membership, gang: Gang, shard: Shard, pause: Pause) -> Found | None:
        async with aclosing(self._holders(member, gang, shard.name)) as holders:
            async for peer in holders:
                found = await self._pull(peer, gang, shard, pause)
                if found is not None:
                    return found
        self.outcomes[Code.MISSING] += 1
        return None

    async def _holders(self, member: Membership, gang: Gang, name: str) -> AsyncGenerator[Peer]:
        """Yield peers that have the shard, each one when it has answered. The likely ones are asked first."""
        partners = (member.peers.partner,) if member.peers.partner is not None else ()
        likely = self._others((*partners, *member.peers.near), ())
        rest = self._others(gang.group, likely)
        asking = self._ask(likely, gang, patient=True)
        wait_s: float | None = _ALONE_S
        try:
            while asking or rest:
                done = await _first(asking, wait_s)
                for task in done:
                    peer = asking.pop(task)
                    if name in task.result():
                        yield peer
                if not done or not asking:
                    asking |= self._ask(rest, gang, patient=False)
                    rest, wait_s = [], None
        finally:
            for task in asking:
                task.cancel()

    def _others(self, peers: Iterable[Peer], without: Iterable[Peer]) -> list[Peer]:
        """Return the peers without this node and without others, each address once."""
        passed = {self._address, *(peer.address for peer in without)}
        return list({peer.address: peer for peer in peers if peer.address not in passed}.values())

    def _ask(self, peers: Iterable[Peer], gang: Gang, patient: bool) -> dict[_Task, Peer]:
        return {asyncio.create_task(self._catalog(peer, gang, patient)): peer for peer in peers}

    async def _catalog(self, peer: Peer, gang: Gang, patient: bool) -> frozenset[str]:
        key = (gang.uid, gang.attempt, peer.address)
        known = self._catalogs.get(key)
        if known is not None and time.monotonic() - known.time_s < _FRESH_S:
            return known.names
        while self._standing.begin(peer.address):
            try:
                async with self._slots, self._connections.use(peer.address, gang) as stream:
                    answer = await self._connections.ask(stream, {"op": "catalog"})
                names = _names(answer.get("shards"))
            except PeerError as error:
                if error.code not in (Code.NO_READER, Code.ENDED):
                    self._standing.failed(peer.address)
                elif error.code == Code.NO_READER and patient and time.monotonic() < gang.began_s + START_S:
                    await asyncio.sleep(_POLL_S)
                    continue
                break
            self._standing.succeeded(peer.address)
            if len(self._catalogs) >= _CATALOGS_MAX:
                self._catalogs.clear()
            self._catalogs[key] = _Catalog(time.monotonic(), names)
            return names
        return frozenset()

    async def _pull(self, peer: Peer, gang: Gang, shard: Shard, pause: Pause) -> Found | None:
        async def write(partial: Partial) -> None:
            try:
                await self._receive(peer, gang, shard, partial.descriptor, pause)
            except WriteFailed as error:
                self._kept.failed(error.error)
                raise DiskBypassed(str(error)) from None

        try:
            await self._kept.add(shard, write)
        except (PeerError, Refused) as error:
            self.outcomes[error.code] += 1
            if isinstance(error, PeerError):
                self._judge(peer, error.code)
            return None
        self._standing.succeeded(peer.address)
        self.outcomes["ok"] += 1
        held = await self._kept.open(shard.uid, shard.key, shard.sha256)
        return Found(held, "peer") if held is not None else None

    async def _receive(self, peer: Peer, gang: Gang, shard: Shard, descriptor: int, pause: Pause) -> None:
        async with self._connections.use(peer.address, gang) as stream:
            request = {"op": "shard", "key": shard.key, "sha256": shard.sha256}
            length, sha256 = announced(await self._connections.ask(stream, request), shard.size_bytes)
            if length != shard.size_bytes or sha256 != shard.sha256:
                raise PeerError(Code.WRONG_BYTES, "the peer announced another shard")
            await receive_file(
                stream.reader,
                descriptor,
                length,
                sha256,
                pace=self._connections.pace,
                threads=self._kept.threads,
                pause=pause,
            )

    def _judge(self, peer: Peer, code: str) -> None:
        if code == Code.WRONG_BYTES:
            self._standing.lied(peer.address)
        elif code not in (Code.MISSING, Code.NO_READER, Code.ENDED):
            self._standing.failed(peer.address)


def _names(listed: object) -> frozenset[str]:
    """Return the valid names of a peer's list. Raises PeerError."""
    if not isinstance(listed, list):
        raise PeerError(Code.MALFORMED, "the peer sent no list of shards")
    return frozenset(each for each in listed if is_sha256(each))


async def _first(tasks: Collection[_Task], timeout_s: float | None) -> Collection[_Task]:
    """Return the tasks that are done, at the latest after the timeout."""
    if not tasks:
        return ()
    return (await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED))[0]
