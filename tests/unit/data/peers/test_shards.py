"""Checkpoint shards stay on their node and on one peer: they come back from there, and only to their job."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from muster.api.cache_ticket import Peer, PeerList
from muster.data.cache.disk import SHARDS, Disk, Limits
from muster.data.cache.files import Folder
from muster.data.peers import kept, restore
from muster.data.peers.frames import Code
from muster.data.peers.holder import NotHeld
from muster.data.peers.kept import Refused
from muster.data.peers.peering import Peering
from muster.data.peers.shards import Shard, surplus
from tests.support.peergang import PATIENT, VERIFIER, loopback, ticket_file
from tests.support.waiting import until

ROOM = 64 << 20


class NoBlocks:
    async def fetch(self, wanted, job, deadline_s):
        raise NotHeld("unavailable")


class Node:
    """The peer part of a cache on a real folder."""

    def __init__(self, folder, address, disk):
        self.folder, self.address, self.disk = folder, address, disk
        self.charged = []
        self.peering = Peering(
            address,
            lambda: VERIFIER,
            disk,
            NoBlocks(),
            charge=lambda uid, source, count: self.charged.append((uid, source, count)),
            pause=lambda uid, count: 0.0,
            pace=PATIENT,
        )


@asynccontextmanager
async def node_on(folder, address="", size_bytes=ROOM):
    disk = Disk(Folder(folder), Limits(size_bytes=size_bytes, floor_fraction=0.0))
    await disk.start()
    try:
        node = Node(folder, address, disk)
        async with node.peering.run():
            yield node
    finally:
        disk.close()


@asynccontextmanager
async def nodes_on(tmp_path, addresses):
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(node_on(tmp_path / f"node-{number}", address))
            for number, address in enumerate(addresses)
        ]


def shard_of(data, *, uid="u-1", rank=0, step=40, attempt=1, **fields):
    path = f"s3://bucket/ckpt/step-{step:08}-attempt-{attempt}"
    about = {"key": f"{path}/rank-{rank:05}/model", "checkpoint": path, **fields}
    return Shard(
        uid=uid, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data), step=step, attempt=attempt, **about
    )


def file_of(data):
    descriptor = os.memfd_create("shard")
    os.write(descriptor, data)
    return descriptor


def data_of(number, length=3_000_000):
    return random.Random(number).randbytes(length)


def ring(addresses, slot):
    """Peers of a gang whose partner is the next node."""
    group = tuple(Peer(number, address) for number, address in enumerate(addresses))
    return PeerList(group=group, partner=group[(slot + 1) % len(group)])


def join(node, addresses, slot, attempt=1, uid="u-1"):
    return node.peering.join(ticket_file(uid, attempt, slot, ring(addresses, slot)))


def bytes_of(found):
    data = os.pread(found.held.descriptor, found.held.length, 0)
    os.close(found.held.descriptor)
    return data


async def keep(node, member, data, shard, confirmed="", copy=False):
    descriptor = file_of(data)
    try:
        await node.peering.keep(member, shard, descriptor, confirmed, copy)
    finally:
        os.close(descriptor)


@pytest.mark.slow
async def test_replaced_node_restores_from_the_partner_and_healthy_nodes_from_their_disks(tmp_path):
    addresses = loopback(4)
    data = [data_of(rank) for rank in range(3)]
    shards = [shard_of(each, rank=rank) for rank, each in enumerate(data)]
    async with nodes_on(tmp_path, addresses) as nodes:
        before = addresses[:3]
        for slot in range(3):
            member = join(nodes[slot], before, slot)
            await keep(nodes[slot], member, data[slot], shards[slot], copy=True)
        for node in nodes[:3]:
            await until("the copy", lambda node=node: len(node.peering.kept.catalog("u-1")) == 2)
        after = [addresses[0], addresses[3], addresses[2]]  # slot 1 is on another node now
        members = {slot: join(nodes[number], after, slot, attempt=2) for slot, number in enumerate([0, 3, 2])}
        for slot, number, source in ((0, 0, "disk"), (1, 3, "peer"), (2, 2, "disk")):
            found = await nodes[number].peering.find(members[slot], shards[slot], 10.0)
            assert found is not None
            assert bytes_of(found) == data[slot]
            assert found.source == source
            assert nodes[number].charged == [("u-1", source, len(data[slot]))]
        again = await nodes[3].peering.find(members[1], shards[1], 10.0)
        assert again is not None
        assert again.source == "disk"
        os.close(again.held.descriptor)


async def test_ranks_that_moved_find_their_shards_anywhere_in_the_group(tmp_path):
    """A replaced node may change the order of ranks, so a healthy node needs another node's shard."""
    addresses = loopback(3)
    data = data_of(1)
    async with nodes_on(tmp_path, addresses) as nodes:
        await keep(nodes[0], join(nodes[0], addresses, 0), data, shard_of(data))
        members = [join(node, addresses, slot, attempt=2) for slot, node in enumerate(nodes)]
        found = await nodes[1].peering.find(members[1], shard_of(data), 10.0)  # the partner, node 2, has nothing
        assert found is not None
        assert bytes_of(found) == data


async def test_partner_whose_first_rank_starts_late_is_waited_for(tmp_path):
    addresses = loopback(2)
    data = data_of(1)
    async with nodes_on(tmp_path, addresses) as nodes:
        await keep(nodes[1], join(nodes[1], addresses, 1), data, shard_of(data))
        member = join(nodes[0], addresses, 0, attempt=2)
        finding = asyncio.create_task(nodes[0].peering.find(member, shard_of(data), 20.0))
        await until("a refused request", lambda: nodes[1].peering.server.refused[Code.NO_READER] > 0)
        assert not finding.done()
        join(nodes[1], addresses, 1, attempt=2)
        found = await finding
        assert found is not None
        assert bytes_of(found) == data


async def test_partner_down_and_copies_gone_leave_the_bucket(tmp_path, monkeypatch):
    monkeypatch.setattr(restore, "START_S", 0.0)
    addresses = loopback(3)
    async with nodes_on(tmp_path, addresses[:2]) as nodes:
        member = join(nodes[0], addresses, 0, attempt=2)
        join(nodes[1], addresses, 1, attempt=2)
        assert await nodes[0].peering.find(member, shard_of(data_of(1)), 10.0) is None
        assert nodes[0].peering.restorer.outcomes == {Code.MISSING: 1}


async def test_first_attempt_asks_no_peer(tmp_path):
    addresses = loopback(2)
    async with nodes_on(tmp_path, addresses[:1]) as nodes:
        member = join(nodes[0], addresses, 0, attempt=1)
        assert await nodes[0].peering.find(member, shard_of(b"x"), 10.0) is None
        assert nodes[0].peering.standing.skipped() == []


async def test_shards_survive_the_process_and_the_attempt(tmp_path):
    data = data_of(1)
    async with node_on(tmp_path / "a") as node:
        await keep(node, join(node, ["127.0.0.1:1"], 0), data, shard_of(data))
    async with node_on(tmp_path / "a") as node:
        member = join(node, ["127.0.0.1:1"], 0, attempt=2)
        found = await node.peering.find(member, shard_of(data), 10.0)
        assert found is not None
        assert bytes_of(found) == data


async def test_other_job_of_the_same_name_gets_nothing(tmp_path):
    """The UID counts: the second job was created after the first one of this name was deleted."""
    addresses, data = loopback(2), data_of(1)
    async with nodes_on(tmp_path, addresses) as nodes:
        for slot, node in enumerate(nodes):
            await keep(node, join(node, addresses, slot), data, shard_of(data))
        others = [join(node, addresses, slot, attempt=2, uid="u-2") for slot, node in enumerate(nodes)]
        assert await nodes[0].peering.find(others[0], shard_of(data, uid="u-2"), 5.0) is None
        assert nodes[0].charged == []


async def test_bytes_that_rotted_on_the_disk_are_not_restored(tmp_path):
    data = data_of(1)
    async with node_on(tmp_path / "a") as node:
        await keep(node, join(node, ["127.0.0.1:1"], 0), data, shard_of(data))
        path = node.disk.folder.path(SHARDS, shard_of(data).name)
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(1000)
        file.write(b"rot")
    async with node_on(tmp_path / "a") as node:
        member = join(node, ["127.0.0.1:1"], 0, attempt=2)
        assert await node.peering.find(member, shard_of(data), 5.0) is None
        assert node.peering.kept.catalog("u-1") == []


async def test_file_without_an_entry_in_the_index_is_removed(tmp_path):
    data = data_of(1)
    async with node_on(tmp_path / "a") as node:
        await keep(node, join(node, ["127.0.0.1:1"], 0), data, shard_of(data))
    (tmp_path / "a" / "kept.json").write_text("{")
    async with node_on(tmp_path / "a") as node:
        assert not node.disk.entries[SHARDS]


@pytest.mark.parametrize("change", [{"size_bytes": 10}, {"sha256": "0" * 64}])
async def test_file_that_is_not_the_announced_shard_is_refused(tmp_path, change):
    data = data_of(1)
    async with node_on(tmp_path / "a") as node:
        member = join(node, ["127.0.0.1:1"], 0)
        about = {name: getattr(shard_of(data), name) for name in Shard.__struct_fields__}
        with pytest.raises(Refused) as refused:
            await keep(node, member, data, Shard(**{**about, **change}))
        assert refused.value.code == Code.WRONG_BYTES
        assert not node.disk.entries[SHARDS]
        assert node.disk.used_bytes == 0


async def test_older_checkpoints_leave_when_a_newer_one_is_confirmed(tmp_path):
    async with node_on(tmp_path / "a") as node:
        member = join(node, ["127.0.0.1:1"], 0)
        steps = {step: shard_of(data_of(step), step=step) for step in (20, 40, 60)}
        for step, shard in steps.items():
            await keep(node, member, data_of(step), shard)
        assert len(node.disk.entries[SHARDS]) == 3
        await node.peering.kept.confirm("u-1", steps[40].checkpoint)
        assert set(node.disk.entries[SHARDS]) == {steps[40].name, steps[60].name}
        await node.peering.kept.confirm("u-1", steps[20].checkpoint)  # late
        assert set(node.disk.entries[SHARDS]) == {steps[40].name, steps[60].name}


def test_confirmed_checkpoint_is_kept_however_many_newer_ones_fail():
    shards = [shard_of(b"x", step=step) for step in range(1, 9)]
    dropped = surplus(shards, shards[2].checkpoint)
    assert [shard.step for shard in shards if shard not in dropped] == [3, 7, 8]


def test_save_of_a_later_attempt_is_newer_than_a_higher_step():
    old, new = shard_of(b"x", step=80, attempt=1), shard_of(b"y", step=60, attempt=2)
    assert surplus([old, new], new.checkpoint) == [old]


@pytest.mark.slow
async def test_full_area_drops_shards_of_jobs_without_readers_first(tmp_path):
    size = 3_000_000
    async with node_on(tmp_path / "a", size_bytes=2 * 3 * size) as node:
        gone = join(node, ["127.0.0.1:1"], 0, uid="u-gone")
        here = join(node, ["127.0.0.1:1"], 0, uid="u-here")
        await keep(node, gone, data_of(1, size), shard_of(data_of(1, size), uid="u-gone"))
        await keep(node, here, data_of(2, size), shard_of(data_of(2, size), uid="u-here"))
        gone.end()
        node.peering.gangs._gangs["u-gone"].idle_since_s -= 10_000.0
        node.peering.gangs.sweep()
        third = shard_of(data_of(3, size), uid="u-here", step=60)
        await keep(node, here, data_of(3, size), third)
        assert node.peering.kept.catalog("u-gone") == []
        with pytest.raises(Refused) as refused:
            await keep(node, here, data_of(4, size), shard_of(data_of(4, size), uid="u-here", step=80))
        assert refused.value.code == Code.NO_ROOM
        assert len(node.peering.kept.catalog("u-here")) == 2


async def test_shards_of_a_job_that_is_gone_for_a_day_are_removed(tmp_path, monkeypatch):
    async with node_on(tmp_path / "a") as node:
        member = join(node, ["127.0.0.1:1"], 0)
        await keep(node, member, b"data", shard_of(b"data"))
        monkeypatch.setattr(kept, "AGE_S", -1.0)
        await node.peering.kept.sweep()
        assert len(node.peering.kept.catalog("u-1")) == 1  # it has a reader here
        member.end()
        node.peering.gangs._gangs.clear()
        await node.peering.kept.sweep()
        assert node.peering.kept.catalog("u-1") == []


async def test_missing_partner_is_reported_once(tmp_path, caplog):
    async with node_on(tmp_path / "a") as node:
        peers = PeerList(group=(Peer(0, "127.0.0.1:1"),))
        member = node.peering.join(ticket_file("u-1", 1, 0, peers))
        for step in (20, 40):
            await keep(node, member, data_of(step), shard_of(data_of(step), step=step), copy=True)
        assert node.peering.copies.outcomes == {"no-partner": 2}
        assert [record.levelname for record in caplog.records if "no copies" in record.message] == ["WARNING"]


async def test_copy_waits_for_a_partner_that_is_down(tmp_path, monkeypatch):
    monkeypatch.setattr("muster.data.peers.copies.FIRST_PAUSE_S", 0.05)
    addresses, data = loopback(2), data_of(1)
    async with node_on(tmp_path / "a", addresses[0]) as node:
        await keep(node, join(node, addresses, 0), data, shard_of(data), copy=True)
        async with node_on(tmp_path / "b", addresses[1]) as partner:
            join(partner, addresses, 1)
            await until("the end of the copy", lambda: node.peering.copies.outcomes)
            assert node.peering.copies.outcomes == {"ok": 1}
            assert len(partner.peering.kept.catalog("u-1")) == 1


async def test_copies_of_an_attempt_that_is_over_are_not_sent(tmp_path):
    addresses, data = loopback(2), data_of(1)
    async with nodes_on(tmp_path, addresses) as nodes:
        old = join(nodes[0], addresses, 0)
        await keep(nodes[0], old, data, shard_of(data))
        join(nodes[0], addresses, 0, attempt=2)
        join(nodes[1], addresses, 1, attempt=2)
        assert old.gang is not None
        nodes[0].peering.copies.send(shard_of(data), old.gang, Peer(1, addresses[1]))
        await until("an outcome", lambda: nodes[0].peering.copies.outcomes)
        assert nodes[0].peering.copies.outcomes == {Code.NO_READER: 1}
        assert nodes[1].peering.kept.catalog("u-1") == []
