"""The part of a node cache that knows other nodes: gangs, exchange of blocks, checkpoint shards and their copies."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from muster.api.cache_ticket import TicketRefused, TicketVerifier
from muster.data.cache.blocks import Block
from muster.data.cache.disk import Disk
from muster.data.peers.blocks import PeerBlocks
from muster.data.peers.client import Connections
from muster.data.peers.copies import Copies
from muster.data.peers.gangs import Gang, Gangs, Membership
from muster.data.peers.holder import Holder, Wanted
from muster.data.peers.kept import KeptShards
from muster.data.peers.restore import Found, Restorer
from muster.data.peers.server import PeerServer
from muster.data.peers.shards import Shard
from muster.data.peers.standing import Standing
from muster.data.peers.transfer import Pace

log = logging.getLogger(__name__)

_SWEEP_S: Final = 10.0
_BIND_AGAIN_S: Final = 5.0
_COMPLAIN_S: Final = 60.0
_KEYS_BYTES_MAX: Final = 64 << 10
_PACE: Final = Pace()

Charge = Callable[[str, str, int], None]
"""Records bytes of a job (its UID) by source, as the cache's accounts do."""
RatePause = Callable[[str, int], float]
"""Charges bytes to a job's rate, and returns how many seconds to pause."""


class TicketKeys:
    """The public keys that verify tickets, from a file that may change. A ConfigMap's file changes by a rename.

    Args:
        path: the file; None: no ticket is valid.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._verifier = TicketVerifier("")

    def __call__(self) -> TicketVerifier:
        """Return a verifier with the current keys. If the file is malformed, the keys before stay valid."""
        if self._path is None:
            return self._verifier
        try:
            found = self._path.stat()
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
            if stamp != self._stamp:
                self._stamp = stamp
                with self._path.open() as file:
                    self._verifier = TicketVerifier(file.read(_KEYS_BYTES_MAX))
        except (OSError, ValueError) as error:
            log.warning("the keys that verify tickets of jobs cannot be read: %s", error)
        return self._verifier


class Peering:
    """Everything about peers that the sessions of a node cache use.

    Args:
        address: IP:PORT at which peers reach this cache; "" without peers. Shards are then kept all the same.
        keys: returns the verifier of tickets.
        disk: started.
        holder: the blocks of this node.
        charge: records bytes.
        pause: applies the rates of jobs.
        mark: called with each socket and the UID of its job, before it carries the job's bytes.
        pace: limits of time.
    """

    def __init__(
        self,
        address: str,
        keys: Callable[[], TicketVerifier],
        disk: Disk,
        holder: Holder,
        *,
        charge: Charge,
        pause: RatePause,
        mark: Callable[[socket.socket, str], None] = lambda sock, uid: None,
        pace: Pace = _PACE,
    ) -> None:
        self.address = address
        self.gangs = Gangs(keys, time.monotonic, time.time)
        self.standing = Standing(time.monotonic)
        self.connections = Connections(pace, mark)
        self.blocks = PeerBlocks(address, self.connections, self.standing)
        self.kept = KeptShards(disk, self.gangs.uids, pace)
        self.copies = Copies(self.kept, self.gangs, self.connections)
        self.restorer = Restorer(address, self.kept, self.connections, self.standing)
        self.server = PeerServer(self.gangs, holder, self.kept, address, pause=pause, mark=mark)
        self._charge = charge
        self._complain_s = 0.0
        self._pause = pause

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Serve peers and send copies while the context is open. Raises DiskBypassed if the disk does not work."""
        await self.kept.start()
        tasks = [asyncio.create_task(work) for work in (self.copies.run(), self._sweep(), self._serve())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.connections.close()
            self.blocks.close()
            self.kept.close()

    def join(self, file: object) -> Membership | None:
        """Register a reader by the content of its ticket file; None, and a line in the log, if it is refused."""
        try:
            return self.gangs.join(file)
        except TicketRefused as error:
            if time.monotonic() >= self._complain_s:
                self._complain_s = time.monotonic() + _COMPLAIN_S
                log.warning("refused a ticket: %s; its reader has no peers", error)
            return None

    async def fetch(
        self, gang: Gang, block: Block, descriptor: int, deadline_s: float, pause: Callable[[int], float]
    ) -> str | None:
        """Write a block to an empty file and return its SHA-256 in hex; None if no peer has it. Raises WriteFailed."""
        wanted = Wanted(block.store, block.key, block.version, block.size_bytes, block.number)
        return await self.blocks.fetch(gang, wanted, block.length, descriptor, deadline_s, pause)

    async def keep(self, member: Membership, shard: Shard, source: int, confirmed: str, copy: bool) -> None:
        """Keep a shard that a rank of this node saved, and send a copy to the partner if asked. Raises Refused."""
        await self.kept.keep(shard, source)
        await self.kept.confirm(shard.uid, confirmed)
        if copy and member.gang is not None:
            self.copies.send(shard, member.gang, member.peers.partner, confirmed)

    async def find(self, member: Membership, shard: Shard, deadline_s: float) -> Found | None:
        """Return a shard from this node or a peer, and charge its bytes to the job."""
        found = await self.restorer.find(member, shard, deadline_s, lambda count: self._pause(shard.uid, count))
        if found is not None:
            self._charge(shard.uid, found.source, found.held.length)
        return found

    async def _serve(self) -> None:
        """Serve peers; where the address cannot be used yet, try again."""
        while self.address:
            try:
                async with self.server.serve():
                    await asyncio.Event().wait()
            except OSError as error:
                log.error("cannot serve peers at %s: %s; trying again", self.address, error.strerror or error)
                await asyncio.sleep(_BIND_AGAIN_S)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.gangs.sweep()
            self.connections.sweep()
            self.standing.retain(self.gangs.addresses())
            await self.kept.sweep()
