"""The server for peers: only members of a gang get anything, and no client can hold it up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
import time

import msgspec
import pytest

from muster.api.cache_ticket import PeerList, TicketRefused, gang_key
from muster.data.peers import server as server_module
from muster.data.peers.choice import ordered
from muster.data.peers.frames import (
    CHUNK_BYTES,
    HANDSHAKE_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    VERSION,
    Code,
    PeerError,
    open_stream,
    serve_handshake,
)
from tests.support.peergang import PATIENT, attempt_key, content, hold, loopback, peer_gang, ticket_file, wanted
from tests.support.waiting import until

KEY = bytes.fromhex(gang_key(attempt_key("u-1", 1)))
BLOCK = wanted(0)
REQUEST = {
    "op": "block",
    "store": BLOCK.store,
    "key": BLOCK.key,
    "version": BLOCK.version,
    "size": BLOCK.size_bytes,
    "index": BLOCK.number,
    "deadline_s": 5.0,
}


async def connect(address):
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


def frame(message):
    body = json.dumps(message).encode() if not isinstance(message, bytes) else message
    return struct.pack(">I", len(body)) + body


async def receive(reader):
    (length,) = struct.unpack(">I", await reader.readexactly(4))
    return json.loads(await reader.readexactly(length))


async def block_through(stream):
    await stream.send(REQUEST)
    while (answer := await stream.receive()).get("pending"):
        pass
    return await stream.reader.readexactly(answer["length"])


@contextlib.asynccontextmanager
async def one_node():
    """A server with one reader of gang u-1, attempt 1."""
    async with peer_gang(1) as gang:
        gang.join(0)
        yield gang.nodes[0]


async def test_member_gets_a_block():
    async with one_node() as node:
        stream = await open_stream(node.address, "u-1", 1, KEY, 5.0)
        assert await block_through(stream) == content(BLOCK)
        assert await block_through(stream) == content(BLOCK)  # on the same connection
        stream.close()


@pytest.mark.parametrize(
    ("uid", "attempt", "key", "code"),
    [
        ("u-1", 1, bytes(32), Code.WRONG_KEY),
        ("u-1", 2, KEY, Code.NO_READER),
        ("u-1", 0, KEY, Code.ENDED),
        ("u-2", 1, KEY, Code.NO_READER),
        ("u" * 65, 1, KEY, Code.MALFORMED),
    ],
)
async def test_no_one_else_is_served(uid, attempt, key, code):
    async with one_node() as node:
        with pytest.raises(PeerError) as refused:
            await open_stream(node.address, uid, attempt, key, 5.0)
        assert refused.value.code == code


async def test_gang_whose_readers_left_long_ago_is_not_served():
    async with peer_gang(1) as gang:
        member = gang.join(0)
        member.end()
        (await open_stream(gang.nodes[0].address, "u-1", 1, KEY, 5.0)).close()  # they may come back at once
        gang.nodes[0].gangs._gangs["u-1"].idle_since_s -= 3600.0
        with pytest.raises(PeerError, match=Code.NO_READER):
            await open_stream(gang.nodes[0].address, "u-1", 1, KEY, 5.0)


async def test_client_without_the_key_learns_nothing_from_a_recorded_handshake():
    async with one_node() as node:
        recorded = []
        reader, writer = await connect(node.address)
        hello = {"version": VERSION, "uid": "u-1", "attempt": 1, "nonce": "0" * 32}
        writer.write(frame(hello))
        recorded.append(await receive(reader))
        writer.close()
        reader, writer = await connect(node.address)
        writer.write(frame(hello))
        assert (await receive(reader))["nonce"] != recorded[0]["nonce"]
        writer.write(frame({"mac": recorded[0]["mac"]}))  # the server's own proof, sent back
        assert await reader.read() == b""
        writer.close()


async def test_server_for_another_address_is_not_believed():
    """A process that forwards to the real server, at an address that is not in the list of peers' servers."""
    async with one_node() as node:
        address, forwarded = loopback(2)[1], asyncio.Event()

        async def forward(reader, writer):
            theirs = await connect(node.address)
            await asyncio.gather(_copy(reader, theirs[1]), _copy(theirs[0], writer))
            forwarded.set()

        host, _, port = address.rpartition(":")
        async with await asyncio.start_server(forward, host, int(port)):
            with pytest.raises(PeerError) as refused:
                await open_stream(address, "u-1", 1, KEY, 5.0)
            assert refused.value.code == Code.WRONG_KEY
            await forwarded.wait()


async def _copy(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


async def test_changed_message_ends_the_connection():
    async with one_node() as node:
        stream = await open_stream(node.address, "u-1", 1, KEY, 5.0)
        body = json.dumps(REQUEST).encode()
        stream.writer.write(struct.pack(">I", len(body)) + body + bytes(32))
        assert await stream.reader.read() == b""
        stream.close()


@pytest.mark.parametrize("size", [HANDSHAKE_BYTES_MAX + 1, 1 << 31, (1 << 32) - 1])
async def test_oversized_first_frame_ends_the_connection(size):
    async with one_node() as node:
        reader, writer = await connect(node.address)
        writer.write(struct.pack(">I", size))
        assert await reader.read() == b""
        writer.close()


async def test_oversized_message_of_a_member_ends_the_connection():
    async with one_node() as node:
        stream = await open_stream(node.address, "u-1", 1, KEY, 5.0)
        stream.writer.write(struct.pack(">I", MESSAGE_BYTES_MAX + 1))
        assert await stream.reader.read() == b""
        stream.close()


@pytest.mark.parametrize("body", [b"[]", b"{", b"\xff", b"{}", b"[" * 1000, b'{"version":1,"uid":1}'])
async def test_malformed_greeting_ends_the_connection(body):
    async with one_node() as node:
        reader, writer = await connect(node.address)
        writer.write(frame(body))
        assert (await reader.read())[4:] in (b"", b'{"error":"malformed"}')
        writer.close()


@pytest.mark.parametrize("change", [{"size": -1}, {"index": "x"}, {"deadline_s": 1e9}, {"store": None}, {"op": "x"}])
async def test_malformed_request_is_refused(change):
    async with one_node() as node:
        stream = await open_stream(node.address, "u-1", 1, KEY, 5.0)
        await stream.send({**REQUEST, **change})
        assert (await stream.receive())["error"] in (Code.MALFORMED, Code.MISSING)
        stream.close()


async def test_version_of_another_release_is_named():
    async with one_node() as node:
        reader, writer = await connect(node.address)
        writer.write(frame({"version": 99, "uid": "u-1", "attempt": 1, "nonce": "0" * 32}))
        assert await receive(reader) == {"error": Code.VERSION}
        writer.close()


async def test_client_that_drips_its_greeting_is_cut_off(monkeypatch):
    monkeypatch.setattr(server_module, "HANDSHAKE_S", 0.3)
    async with one_node() as node:
        reader, writer = await connect(node.address)
        writer.write(b"\0")
        assert await reader.read() == b""
        writer.close()
        await until("no connection", lambda: node.server.connections == 0)


@pytest.mark.slow
async def test_1000_connections_do_not_keep_a_member_out(monkeypatch):
    monkeypatch.setattr(server_module, "STRANGERS_OF_HOST_MAX", 16)
    monkeypatch.setattr(server_module, "HANDSHAKE_S", 600.0)  # strangers of before keep their places until the end
    async with one_node() as node:
        strangers = await asyncio.gather(*(connect(node.address) for _ in range(1000)))
        await until("refusals", lambda: node.server.refused[Code.BUSY] == 984)
        stream = await open_stream_from("127.61.9.9", node.address)
        assert await block_through(stream) == content(BLOCK)
        stream.close()
        for _, writer in strangers:
            writer.transport.abort()


async def open_stream_from(host, address):
    """Authenticate from another host's address."""
    real = asyncio.open_connection

    async def from_host(*args, **options):
        return await real(*args, **options, local_addr=(host, 0))

    asyncio.open_connection = from_host
    try:
        return await open_stream(address, "u-1", 1, KEY, 5.0)
    finally:
        asyncio.open_connection = real


async def test_peer_that_drips_its_bytes_is_slow():
    """The client's side: a server of the gang that sends a byte now and then."""
    pace = msgspec.structs.replace(PATIENT, floor_bytes_per_s=64 << 10, window_s=0.5)
    async with peer_gang(2, dead=[1], pace=pace) as gang:
        reader_of, gone = gang.join(0), asyncio.Event()
        address = gang.nodes[1].address

        async def drip(reader, writer):
            (length,) = struct.unpack(">I", await reader.readexactly(4))
            hello = json.loads(await reader.readexactly(length))
            stream = await serve_handshake(reader, writer, address, hello, KEY)
            await stream.receive()
            held = hold(content(BLOCK))
            os.close(held.descriptor)
            await stream.send({"length": held.length, "sha256": held.sha256})
            with contextlib.suppress(OSError):
                while not writer.transport.is_closing():
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0.05)
            writer.transport.abort()
            gone.set()

        host, _, port = address.rpartition(":")
        server = await asyncio.start_server(drip, host, int(port))
        block = _block_of(gang, 1)
        assert await gang.nodes[0].read(reader_of, block, 20.0) == content(block)
        assert gang.nodes[0].blocks.outcomes == {Code.SLOW: 1}
        assert gang.nodes[0].standing.skipped() == [address]
        await gone.wait()
        server.close()


def _block_of(gang, slot):
    return next(each for each in map(wanted, range(50)) if ordered(each, gang.peers.group)[0].slot == slot)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"key": "00" * 32}, "key"),
        ({"peers": {"group": [{"slot": 0, "address": "169.254.169.254:80"}]}}, "peers"),
        ({"ticket": "x.y"}, "ticket"),
        ({"ticket": None}, "malformed"),
        ({"peers": "all"}, "malformed"),
    ],
)
async def test_reader_cannot_exchange_parts_of_its_ticket_file(change, reason):
    async with peer_gang(1) as gang:
        with pytest.raises(TicketRefused, match=reason):
            gang.nodes[0].gangs.join({**gang.ticket_file(0), **change})


async def test_reader_with_an_expired_ticket_is_refused_and_with_the_renewed_one_joins():
    async with peer_gang(1) as gang:
        old = ticket_file("u-1", 1, 0, gang.peers, expires=time.time() - 400)
        with pytest.raises(TicketRefused, match="expired"):
            gang.nodes[0].gangs.join(old)
        skewed = ticket_file("u-1", 1, 0, gang.peers, expires=time.time() - 250)  # a clock five minutes ahead
        assert gang.nodes[0].gangs.join(skewed).gang is not None
        assert gang.nodes[0].gangs.join(gang.ticket_file(0)).gang.readers == 2


async def test_two_jobs_of_the_same_name_are_two_gangs():
    async with peer_gang(1) as gang:
        gang.join(0)
        gang.nodes[0].gangs.join(ticket_file("u-2", 1, 0, PeerList()))
        assert gang.nodes[0].gangs.uids() == {"u-1", "u-2"}
        with pytest.raises(PeerError) as refused:
            await open_stream(gang.nodes[0].address, "u-2", 1, KEY, 5.0)
        assert refused.value.code == Code.WRONG_KEY
