"""Sends copies of checkpoint shards to the partner's cache: in the background, at a bounded rate, with retries."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from muster.api.cache_ticket import Peer
from muster.data.peers.client import Connections
from muster.data.peers.frames import Code, PeerError, code_of
from muster.data.peers.gangs import Gang, Gangs
from muster.data.peers.kept import KeptShards
from muster.data.peers.shards import Shard
from muster.data.peers.transfer import send_file

log = logging.getLogger(__name__)

RATE_BYTES_PER_S: Final = 256 << 20
"""Of all copies of a node together: collectives need the network too."""
QUEUE_MAX: Final = 256
TRIES: Final = 8
FIRST_PAUSE_S: Final = 2.0
LONGEST_PAUSE_S: Final = 60.0
NO_PARTNER: Final = "no-partner"
_ACK_S: Final = 60.0


class _Order:
    """A copy to send."""

    def __init__(self, shard: Shard, gang: Gang, partner: Peer, confirmed: str) -> None:
        self.shard = shard
        self.gang = gang
        self.partner = partner
        self.confirmed = confirmed
        self.tries = 0


class Copies:
    """Copies to send. One is sent at a time.

    Args:
        kept: the shards of this node.
        gangs: the gangs with readers here.
        connections: to the peers.
        rate_bytes_per_s: limit of all copies together.
    """

    def __init__(
        self, kept: KeptShards, gangs: Gangs, connections: Connections, rate_bytes_per_s: float = RATE_BYTES_PER_S
    ) -> None:
        self._kept = kept
        self._gangs = gangs
        self._connections = connections
        self._rate = rate_bytes_per_s
        self._queue: OrderedDict[str, _Order] = OrderedDict()
        self._ready = asyncio.Event()
        self._threads = ThreadPoolExecutor(1, "copies")
        self._warned: set[tuple[str, int]] = set()
        self.outcomes: Counter[str] = Counter()
        """Copies by outcome: `ok`, `no-partner`, or the code of the last error."""

    def send(self, shard: Shard, gang: Gang, partner: Peer | None, confirmed: str = "") -> None:
        """Queue a copy for the partner. Without a partner, log that once per attempt."""
        if partner is None:
            self.outcomes[NO_PARTNER] += 1
            self._warn_once(gang, "no other node of the attempt has a cache")
            return
        self._queue[shard.name] = _Order(shard, gang, partner, confirmed)
        self._queue.move_to_end(shard.name)
        if len(self._queue) > QUEUE_MAX:
            self._queue.popitem(last=False)
            self.outcomes[Code.BUSY] += 1
        self._ready.set()

    @property
    def waiting(self) -> int:
        """Number of copies that are not sent yet."""
        return len(self._queue)

    async def run(self) -> None:
        """Send copies until cancelled."""
        try:
            while True:
                await self._ready.wait()
                while self._queue:
                    _, order = self._queue.popitem(last=False)
                    await self._send(order)
                self._ready.clear()
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _send(self, order: _Order) -> None:
        pause_s = FIRST_PAUSE_S
        for _ in range(TRIES):
            if not self._gangs.serves(order.gang):
                code = Code.NO_READER  # the attempt is over: its successor has other partners
                break
            code = await self._try(order)
            if code in _FINAL or order.shard.name in self._queue:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
        self.outcomes[code] += 1
        if code not in ("ok", Code.NO_READER, Code.ENDED):
            self._warn_once(order.gang, f"the cache of slot {order.partner.slot} does not take them ({code})")

    async def _try(self, order: _Order) -> str:
        shard = order.shard
        held = await self._kept.open(shard.uid, shard.key, shard.sha256)
        if held is None:
            return Code.MISSING  # dropped by now, because a newer checkpoint is here
        try:
            async with self._connections.use(order.partner.address, order.gang) as stream:
                about = msgspec.to_builtins(shard)
                answer = await self._connections.ask(stream, {**about, "op": "copy", "confirmed": order.confirmed})
                if answer.get("go"):
                    await send_file(stream.writer, held.descriptor, held.length, self._threads, self._pause)
                    async with asyncio.timeout(_ACK_S):
                        answer = await stream.receive()
                if not answer.get("kept"):
                    raise PeerError(code_of(answer))
        except PeerError as error:
            return error.code
        finally:
            held.close()
        return "ok"

    def _pause(self, count: int) -> float:
        return count / self._rate

    def _warn_once(self, gang: Gang, why: str) -> None:
        about = (gang.uid, gang.attempt)
        if about not in self._warned:
            if len(self._warned) >= QUEUE_MAX:
                self._warned.clear()
            self._warned.add(about)
            log.warning(
                "checkpoint shards of %s, attempt %d, have no copies on a peer: %s. If this node fails, its ranks "
                "restore from the bucket",
                gang.name,
                gang.attempt,
                why,
            )


_FINAL: Final = frozenset({"ok", Code.ENDED, Code.MISSING, Code.NO_ROOM, Code.WRONG_BYTES, Code.MALFORMED})
