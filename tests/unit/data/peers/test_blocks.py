"""A gang downloads each block once, whatever single peers do, and readers always get the right bytes in time."""

from __future__ import annotations

import asyncio
import random
import time

import msgspec
import pytest

from muster.data.peers import server
from muster.data.peers.choice import ordered
from muster.data.peers.frames import Code
from tests.support.peergang import PATIENT, content, peer_gang, wanted
from tests.support.waiting import until


async def _read_everything(gang, readers, blocks, seed=1, deadline_s=30.0):
    """Every reader reads every block, in an order of its own."""
    members = {slot: gang.join(slot) for slot in readers}

    async def read(slot):
        order = list(blocks)
        random.Random(f"{seed}/{slot}").shuffle(order)
        for block in order:
            assert await gang.nodes[slot].read(members[slot], block, deadline_s) == content(block)

    async with asyncio.timeout(deadline_s * len(blocks)):
        await asyncio.gather(*(read(slot) for slot in readers))


async def test_healthy_gang_downloads_each_block_once():
    blocks = [wanted(number) for number in range(12)]
    async with peer_gang(5) as gang:
        await _read_everything(gang, range(5), blocks)
        assert gang.bucket.downloads == dict.fromkeys(blocks, 1)
        assert sum(node.sources["peer"] for node in gang.nodes) == len(blocks) * 4


async def test_readers_that_start_late_are_waited_for():
    blocks = [wanted(number) for number in range(6)]
    async with peer_gang(3) as gang:
        first = asyncio.create_task(_read_everything(gang, [0], blocks))
        await asyncio.sleep(0)
        others = asyncio.create_task(_read_everything(gang, [1, 2], blocks))
        await asyncio.gather(first, others)
        assert gang.bucket.downloads == dict.fromkeys(blocks, 1)


@pytest.mark.parametrize("seed", range(5))
async def test_property_right_bytes_in_time_and_bounded_downloads(seed):
    """Bounds per block: one download with a healthy owner, two with a healthy second choice, else one per reader."""
    rng = random.Random(seed)
    count = rng.randint(3, 6)
    faults = {slot: rng.choice(["dead", "slow", "lying", "no reader"]) for slot in rng.sample(range(count), count // 2)}
    blocks = [wanted(number) for number in range(8)]
    dead = [slot for slot, fault in faults.items() if fault == "dead"]
    async with peer_gang(count, dead=dead) as gang:
        for slot, fault in faults.items():
            gang.nodes[slot].wrong = fault == "lying"
            gang.nodes[slot].served_slowly_s = 60.0 if fault == "slow" else 0.0
        readers = [slot for slot in range(count) if faults.get(slot) not in ("dead", "no reader")]
        for slot in readers:
            # The gang runs for a while: a node without a reader is not awaited.
            gang.join(slot).gang.reads_since_s = time.monotonic() - 60.0
        # A healthy peer has two thirds of the deadline, also on a busy machine; a slow one takes it up.
        await _read_everything(gang, readers, blocks, seed, deadline_s=6.0)
        for block in blocks:
            first, second = (peer.slot for peer in ordered(block, gang.peers.group)[:2])
            most = 1 if first not in faults else 2 if second not in faults else len(readers)
            assert gang.bucket.downloads[block] <= most, f"seed {seed}, faults {faults}, {block}"


async def test_lying_peer_is_detected_and_skipped():
    async with peer_gang(2) as gang:
        gang.nodes[1].wrong = True
        reader = gang.join(0)
        gang.join(1)
        theirs = [block for block in map(wanted, range(20)) if ordered(block, gang.peers.group)[0].slot == 1][:3]
        for block in theirs:
            assert await gang.nodes[0].read(reader, block) == content(block)
        assert gang.nodes[0].blocks.outcomes == {Code.WRONG_BYTES: 1}
        assert gang.nodes[0].standing.skipped() == [gang.nodes[1].address]


async def test_failed_peer_comes_back():
    async with peer_gang(2, dead=[1]) as gang:
        reader, node = gang.join(0), gang.nodes[0]
        gang.join(1)
        theirs = [block for block in map(wanted, range(20)) if ordered(block, gang.peers.group)[0].slot == 1]
        await node.read(reader, theirs[0])
        await node.read(reader, theirs[1])
        assert node.blocks.outcomes == {Code.GONE: 1}
        async with gang.nodes[1].server.serve():
            node.standing._records[gang.nodes[1].address].until_s = 0.0  # the pause is over
            await node.read(reader, theirs[2])
            await node.read(reader, theirs[3])
        assert node.blocks.outcomes == {Code.GONE: 1, "ok": 2}


@pytest.mark.slow
async def test_slow_bucket_does_not_look_like_a_dead_peer(monkeypatch):
    monkeypatch.setattr(server, "PENDING_S", 0.1)
    async with peer_gang(2, pace=msgspec.structs.replace(PATIENT, silence_s=2.0)) as gang:
        gang.bucket.delay_s = 2.5  # longer than the silence that a peer may keep
        reader = gang.join(0)
        gang.join(1)
        block = next(block for block in map(wanted, range(20)) if ordered(block, gang.peers.group)[0].slot == 1)
        assert await gang.nodes[0].read(reader, block) == content(block)
        assert gang.bucket.downloads == {block: 1}
        assert gang.nodes[0].sources == {"peer": 1}


async def test_owner_whose_bucket_refuses_is_not_skipped():
    async with peer_gang(2) as gang:
        reader = gang.join(0)
        gang.join(1)
        block = next(block for block in map(wanted, range(20)) if ordered(block, gang.peers.group)[0].slot == 1)
        gang.bucket.error = "forbidden"
        with pytest.raises(Exception, match="forbidden"):
            await gang.nodes[0].read(reader, block)
        assert gang.nodes[0].standing.skipped() == []


async def test_new_attempt_cuts_off_the_old_one_in_the_middle_of_a_request():
    async with peer_gang(2) as gang:
        gang.nodes[1].served_slowly_s = 60.0
        old = gang.join(0)
        serving = gang.join(1).gang
        block = next(block for block in map(wanted, range(20)) if ordered(block, gang.peers.group)[0].slot == 1)
        reading = asyncio.create_task(gang.nodes[0].read(old, block, 60.0))
        await until("a request", lambda: serving.connections)
        gang.join(1, attempt=2)
        async with asyncio.timeout(20):
            assert await reading == content(block)
        assert gang.nodes[0].sources == {"bucket": 1}


@pytest.mark.parametrize("begun", [False, True], ids=["before-the-request", "during-the-handshake"])
async def test_new_attempt_refuses_the_old_one_at_once(begun: bool):
    async with peer_gang(2) as gang:
        old = gang.join(0)
        gang.join(1)
        block = next(block for block in map(wanted, range(20)) if ordered(block, gang.peers.group)[0].slot == 1)
        if not begun:
            gang.join(1, attempt=2)
        reading = asyncio.create_task(gang.nodes[0].read(old, block, 60.0))
        if begun:
            await until("a connection", lambda: gang.nodes[1].server.connections)
            gang.join(1, attempt=2)
        async with asyncio.timeout(20):
            assert await reading == content(block)
        await until("no connection", lambda: gang.nodes[1].server.connections == 0)


async def test_leftover_of_an_old_attempt_gets_nothing_from_peers():
    async with peer_gang(2) as gang:
        gang.join(0, attempt=2)
        assert gang.join(0, attempt=1).gang is None
