"""Caches of a gang in one process: real peer servers and clients on loopback, over blocks of a model bucket."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import socket
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from muster.api.cache_ticket import Peer, PeerList, Ticket, TicketSigner, TicketVerifier, gang_key, key_digest
from muster.data.peers.blocks import PeerBlocks
from muster.data.peers.client import Connections
from muster.data.peers.frames import mac
from muster.data.peers.gangs import Gangs, Membership
from muster.data.peers.holder import Held, NotHeld, Wanted
from muster.data.peers.server import PeerServer
from muster.data.peers.shards import Shard
from muster.data.peers.standing import Standing
from muster.data.peers.transfer import Pace
from muster.sdk.data import wire
from tests.support.loopback import loopback_subnet

SECRET = b"s" * 32
SIGNER = TicketSigner(SECRET)
VERIFIER = TicketVerifier(SIGNER.public_key)
PATIENT = Pace(connect_s=30.0, silence_s=30.0, floor_bytes_per_s=1.0, window_s=30.0)
"""On a busy machine no peer is slow by itself. A test of slow peers has its own limits."""
BLOCK_BYTES = 100_000
_PORT = 9447  # as on real nodes


def wanted(number: int) -> Wanted:
    return Wanted("s3://bucket", "train.tar", "etag", 1000 * BLOCK_BYTES, number)


def content(block: Wanted) -> bytes:
    return random.Random(str(block)).randbytes(BLOCK_BYTES)


def attempt_key(uid: str, attempt: int) -> str:
    return mac(SECRET, uid, attempt).hex()


def ticket_file(
    uid: str, attempt: int, slot: int, peers: PeerList, expires: float = 0.0, job: str = "train"
) -> dict[str, Any]:
    """What the supervisor of a slot writes for its ranks."""
    key = gang_key(attempt_key(uid, attempt))
    ticket = Ticket(
        uid=uid,
        namespace="team-a",
        job=job,
        attempt=attempt,
        slot=slot,
        expires=int(expires or time.time() + 3600),
        key=key_digest(key),
        peers=peers.digest(),
    )
    return {"ticket": SIGNER.sign(ticket), "key": key, "peers": msgspec.to_builtins(peers)}


def loopback(count: int) -> list[str]:
    """Addresses, one host each, that no other test of this machine is given."""
    subnet = loopback_subnet()
    return [f"{subnet}.{number + 1}:{_PORT}" for number in range(count)]


class Bucket:
    """Counts the downloads of each block."""

    def __init__(self) -> None:
        self.downloads: Counter[Wanted] = Counter()
        self.delay_s = 0.0
        self.error = ""


class Node:
    """A cache as far as peers see it: blocks in files, a peer server, and a reader that asks disk, peers and bucket."""

    def __init__(self, bucket: Bucket, address: str, pace: Pace = PATIENT) -> None:
        self.bucket = bucket
        self.address = address
        self.files: dict[Wanted, Held] = {}
        self.locks: dict[Wanted, asyncio.Lock] = {}
        self.gangs = Gangs(lambda: VERIFIER, time.monotonic, time.time)
        self.server = PeerServer(self.gangs, self, None, address)
        self.standing = Standing(time.monotonic)
        self.connections = Connections(pace)
        self.blocks = PeerBlocks(address, self.connections, self.standing)
        self.sources: Counter[str] = Counter()
        self.served_slowly_s = 0.0
        self.wrong = False

    async def fetch(self, wanted: Wanted, job: str, deadline_s: float) -> Held:
        """The Holder's part: from the disk or the bucket, once."""
        if self.served_slowly_s:
            await asyncio.sleep(self.served_slowly_s)
        held = await self._own(wanted)
        if self.wrong:
            return hold(os.urandom(held.length), held.sha256)
        return Held(os.open(f"/proc/self/fd/{held.descriptor}", os.O_RDONLY), held.length, held.sha256)

    async def _own(self, wanted: Wanted) -> Held:
        async with self.locks.setdefault(wanted, asyncio.Lock()):
            if wanted not in self.files:
                await asyncio.sleep(self.bucket.delay_s)
                if self.bucket.error:
                    raise NotHeld(self.bucket.error)
                self.bucket.downloads[wanted] += 1
                self.files[wanted] = hold(content(wanted))
            return self.files[wanted]

    async def read(self, membership: Membership, block: Wanted, deadline_s: float = 30.0) -> bytes:
        """Read a block as the cache does for a rank of this node."""
        source = "disk" if block in self.files else "bucket"
        if block not in self.files and membership.gang is not None:
            with tempfile.TemporaryFile() as file:
                sha256 = await self.blocks.fetch(
                    membership.gang, block, BLOCK_BYTES, file.fileno(), deadline_s, lambda count: 0.0
                )
                if sha256 is not None:
                    source = "peer"
                    self.files.setdefault(block, Held(os.dup(file.fileno()), BLOCK_BYTES, sha256))
        held = await self._own(block)
        self.sources[source] += 1
        return os.pread(held.descriptor, held.length + 1, 0)

    def close(self) -> None:
        self.blocks.close()
        self.connections.close()
        for held in self.files.values():
            os.close(held.descriptor)


def hold(data: bytes, sha256: str = "") -> Held:
    descriptor = os.memfd_create("block")
    os.write(descriptor, data)
    return Held(descriptor, len(data), sha256 or hashlib.sha256(data).hexdigest())


class PeerGang:
    """Nodes of one gang."""

    def __init__(self, bucket: Bucket, nodes: Sequence[Node], uid: str, attempt: int) -> None:
        self.bucket = bucket
        self.nodes = list(nodes)
        self.uid = uid
        self.attempt = attempt
        self.peers = PeerList(group=tuple(Peer(slot, node.address) for slot, node in enumerate(nodes)))

    def ticket_file(self, slot: int, attempt: int = 0) -> dict[str, Any]:
        return ticket_file(self.uid, attempt or self.attempt, slot, self.peers)

    def join(self, slot: int, attempt: int = 0) -> Membership:
        return self.nodes[slot].gangs.join(self.ticket_file(slot, attempt))


@asynccontextmanager
async def peer_gang(
    count: int, *, dead: Sequence[int] = (), pace: Pace = PATIENT, uid: str = "u-1"
) -> AsyncIterator[PeerGang]:
    """Start the caches of a gang. Those in `dead` do not serve."""
    bucket = Bucket()
    nodes = [Node(bucket, address, pace) for address in loopback(count)]
    async with AsyncExitStack() as stack:
        for slot, node in enumerate(nodes):
            stack.callback(node.close)
            if slot not in dead:
                await stack.enter_async_context(node.server.serve())
        yield PeerGang(bucket, nodes, uid, 1)


class RankShards:
    """A rank's connection to its node's cache for checkpoint shards, frame by frame (`sdk.data.wire`)."""

    def __init__(self, socket_path: str, ticket_path: str) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.settimeout(30)
        self._connection.connect(socket_path)
        self.joined = self._ask({"op": "join", "ticket": json.loads(Path(ticket_path).read_text())})[0]

    def __enter__(self) -> RankShards:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def keep(self, shard: Shard, data: bytes, confirmed: str = "", copy: bool = True) -> str:
        """Keep a shard, and return "" or the code of the refusal."""
        file = os.memfd_create("shard")
        os.write(file, data)
        try:
            about = {"op": "keep", "copy": copy, "confirmed": confirmed, **_about(shard)}
            return str(self._ask(about, [file])[0].get("error", ""))
        finally:
            os.close(file)

    def kept(self, shard: Shard) -> tuple[bytes, str]:
        """Return a shard and its source; (b"", code) without one."""
        answer, descriptors = self._ask({"op": "kept", "deadline_s": 20, "attempt": shard.attempt, **_about(shard)})
        if not descriptors:
            return b"", str(answer["error"])
        with open(descriptors[0], "rb") as file:
            return file.read(answer["length"]), str(answer["source"])

    def _ask(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> tuple[dict[str, Any], list[int]]:
        self._connection.sendmsg([wire.encode(message)], wire.give_descriptors(descriptors))
        while True:
            answer, received = wire.receive(self._connection)
            if not answer.get("pending"):
                return answer, received


def _about(shard: Shard) -> dict[str, Any]:
    return {
        "key": shard.key,
        "sha256": shard.sha256,
        "size": shard.size_bytes,
        "checkpoint": shard.checkpoint,
        "step": shard.step,
    }
