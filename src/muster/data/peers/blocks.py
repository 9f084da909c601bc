"""Gets blocks from the gang's caches: from the block's owner, else from the next one. Then the bucket is left."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from muster.api.cache_ticket import Peer
from muster.data.peers.choice import asked
from muster.data.peers.client import Connections, announced
from muster.data.peers.frames import Code, PeerError
from muster.data.peers.gangs import Gang
from muster.data.peers.holder import STORE_CODES, Wanted
from muster.data.peers.standing import Standing
from muster.data.peers.transfer import Pause, receive_file

SHARE: Final = 0.7
"""A peer gets at most this share of the time that is left; the rest is for the next one. The owner gets most: it may
have to download the block, and if it is given up early, a slow bucket is asked again for the same bytes."""
_ANSWER_SHARE: Final = 0.9
"""The peer gives up after this share of its time, so that its answer still comes and the connection stays open."""
_THREADS: Final = 4
START_S: Final = 10.0
"""While a gang starts, its nodes wait for each other's first reader: otherwise several would download a block."""
_POLL_S: Final = 0.25
_ABSENT_S: Final = 5.0
"""Later, a node without a reader is not asked again within this time."""
_ABSENT_MAX: Final = 4096


class PeerBlocks:
    """The peers of this node, as a source of blocks.

    Args:
        address: IP:PORT of this node, as the peers know it.
        connections: to the peers.
        standing: which peers are skipped.
    """

    def __init__(self, address: str, connections: Connections, standing: Standing) -> None:
        self._address = address
        self._connections = connections
        self._standing = standing
        self._threads = ThreadPoolExecutor(_THREADS, "peer-blocks")
        self._absent: dict[tuple[str, str], float] = {}
        self.outcomes: Counter[str] = Counter()
        """Requests by outcome: `ok`, or the code of the error."""

    async def fetch(
        self, gang: Gang, wanted: Wanted, length: int, descriptor: int, deadline_s: float, pause: Pause
    ) -> str | None:
        """Write a block to an empty file, and return its SHA-256 in hex; None if no peer provided it.

        After None the file is empty again. Bytes from peers are proven by the gang's key alone: the caller must not
        serve them to other jobs.

        Args:
            gang: whose peers to ask.
            wanted: the block.
            length: its number of bytes.
            descriptor: the file.
            deadline_s: how long the reader waits for the block from any source.
            pause: charges the job's rate.

        Raises:
            WriteFailed: the file cannot be written.
        """
        ends_s = time.monotonic() + deadline_s
        gang.reads_since_s = gang.reads_since_s or time.monotonic()
        for peer in asked(wanted, gang.group, self._address, lambda peer: self._usable(gang, peer)):
            if not self._standing.begin(peer.address):
                continue
            limit_s = (ends_s - time.monotonic()) * SHARE
            sha256 = await self._try(peer, gang, wanted, length, descriptor, limit_s, pause)
            if sha256 is not None:
                return sha256
        return None

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _usable(self, gang: Gang, peer: Peer) -> bool:
        return self._standing.usable(peer.address) and time.monotonic() >= self._absent.get(
            (gang.uid, peer.address), 0.0
        )

    async def _try(
        self, peer: Peer, gang: Gang, wanted: Wanted, length: int, descriptor: int, limit_s: float, pause: Pause
    ) -> str | None:
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    try:
                        sha256 = await self._ask(peer, gang, wanted, length, descriptor, limit_s, pause)
                        break
                    except PeerError as error:
                        if error.code != Code.NO_READER or time.monotonic() > gang.reads_since_s + START_S:
                            raise
                    await asyncio.sleep(_POLL_S)
        except (PeerError, TimeoutError) as error:
            code = error.code if isinstance(error, PeerError) else Code.SLOW
            self._judge(gang, peer, code)
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            return None
        self._judge(gang, peer, "ok")
        return sha256

    async def _ask(
        self, peer: Peer, gang: Gang, wanted: Wanted, length: int, descriptor: int, limit_s: float, pause: Pause
    ) -> str:
        request = {
            "op": "block",
            "store": wanted.store,
            "key": wanted.key,
            "version": wanted.version,
            "size": wanted.size_bytes,
            "index": wanted.number,
            "deadline_s": limit_s * _ANSWER_SHARE,
        }
        async with self._connections.use(peer.address, gang) as stream:
            answer = await self._connections.ask(stream, request)
            announced_length, sha256 = announced(answer, length)
            if announced_length != length:
                raise PeerError(Code.WRONG_BYTES, "the peer's block has another length")
            await receive_file(
                stream.reader,
                descriptor,
                length,
                sha256,
                pace=self._connections.pace,
                threads=self._threads,
                pause=pause,
            )
        return sha256

    def _judge(self, gang: Gang, peer: Peer, code: str) -> None:
        self.outcomes[code] += 1
        if code == "ok":
            self._standing.succeeded(peer.address)
        elif code == Code.WRONG_BYTES:
            self._standing.lied(peer.address)
        elif code in (Code.NO_READER, Code.ENDED):
            if len(self._absent) >= _ABSENT_MAX:
                self._absent.clear()
            self._absent[(gang.uid, peer.address)] = time.monotonic() + _ABSENT_S
            self._standing.succeeded(peer.address)
        elif code in STORE_CODES:
            self._standing.succeeded(peer.address)
        else:
            self._standing.failed(peer.address)
