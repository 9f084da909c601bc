"""Node caches as processes: a gang costs one download per object, and restores from disks and peers, not the bucket."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from muster.api.cache_ticket import Peer, PeerList
from muster.data.cache.blocks import StoreIdentity
from muster.data.peers.choice import ordered
from muster.data.peers.holder import Wanted
from muster.data.peers.shards import Shard
from muster.sdk.data.cache_client import CacheClient
from muster.sdk.data.stores import open_store
from tests.support.bucketserver import BucketServer, bucket_server, etag_of
from tests.support.nodecache import NodeCache, access, be_patient, node_cache
from tests.support.peergang import SIGNER, RankShards, loopback, ticket_file
from tests.support.waiting import eventually

NODES = 4


class Site:
    """A bucket, and nodes with caches."""

    def __init__(self, folder: Path, server: BucketServer, caches: list[NodeCache], addresses: list[str]) -> None:
        self.folder = folder
        self.server = server
        self.caches = caches
        self.addresses = addresses

    def ticket(self, node: int, uid: str, attempt: int, nodes: Sequence[int]) -> str:
        """Write the ticket of a node, as its supervisor does. The partner is the next node of the attempt."""
        group = tuple(Peer(slot, self.addresses[each]) for slot, each in enumerate(nodes))
        slot = list(nodes).index(node)
        peers = PeerList(group=group, partner=group[(slot + 1) % len(group)])
        path = self.folder / f"ticket-{uid}-{attempt}-{node}"
        path.write_text(json.dumps(ticket_file(uid, attempt, slot, peers)))
        return str(path)

    def read(self, node: int, ticket: str, keys: Sequence[str], who: str = "alice") -> dict[str, int]:
        """Read objects as a rank of this node, check their bytes, and return how many came from where."""
        client = CacheClient(self.caches[node].socket_path, ticket)
        try:
            for key in keys:
                data = self.server.objects[f"data/{key}"]
                about = access(self.folder, self.server.address, who)
                with client.open_object("s3://data", about, key, etag_of(data), len(data)) as file:
                    assert file.read() == data
            return dict(client.bytes_from)
        finally:
            client.close()

    def read_all(self, uid: str, nodes: Sequence[int], keys: Sequence[str]) -> list[dict[str, int]]:
        """Read objects on all nodes at the same time, each in an order of its own."""
        tickets = {node: self.ticket(node, uid, 1, nodes) for node in nodes}
        orders = {node: random.Random(node).sample(keys, len(keys)) for node in nodes}
        with ThreadPoolExecutor(len(nodes)) as pool:
            return list(pool.map(lambda node: self.read(node, tickets[node], orders[node]), nodes))

    def downloads(self, keys: Sequence[str]) -> dict[str, int]:
        return {key: self.server.counts[f"GET data/{key}"] for key in keys}

    def rank(self, node: int, ticket: str) -> RankShards:
        """A rank on this node."""
        return RankShards(self.caches[node].socket_path, ticket)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    keys, addresses = folder / "ticket.pub", loopback(NODES)
    keys.write_text(SIGNER.public_key + "\n")
    with ExitStack() as stack:
        server = stack.enter_context(bucket_server())
        server.rights = {"alice": ("data",), "mallory": ()}
        access(folder, server.address, "alice")
        limits = ("--size=1Gi", "--floor=0", f"--ticket-key={keys}")
        caches = [
            stack.enter_context(node_cache(folder / f"n{number}", *limits, f"--address={each}"))
            for number, each in enumerate(addresses)
        ]
        yield Site(folder, server, caches, addresses)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


def objects(site: Site, name: str, count: int, length: int = 200_000) -> list[str]:
    keys = [f"{name}-{number}" for number in range(count)]
    for key in keys:
        site.server.objects[f"data/{key}"] = random.Random(key).randbytes(length)
    return keys


@pytest.mark.slow
def test_gang_costs_one_download_per_object(site: Site) -> None:
    keys = [*objects(site, "gang", 12), *objects(site, "large", 1, (32 << 20) + 5)]
    nodes = range(NODES)
    sources = site.read_all("u-gang", nodes, keys)
    assert site.downloads(keys) == {**dict.fromkeys(keys, 1), "large-0": 2}  # it has two blocks
    assert sum(source["bucket"] for source in sources) + sum(source["peer"] for source in sources) >= sum(
        len(site.server.objects[f"data/{key}"]) for key in keys
    )
    account = next(each for each in site.caches[0].status()["jobs"] if each["job"] == "u-gang")
    assert account["bytes"]["peer"] > 0


@pytest.mark.slow
def test_block_from_a_peer_is_for_its_job_alone(site: Site) -> None:
    """A job knows its gang's key, so its pods could send other bytes. Other jobs download their own."""
    keys = objects(site, "scope", 24, 5_000)
    site.read_all("u-one", [0, 1], keys)
    assert sum(site.downloads(keys).values()) == len(keys)
    other = site.ticket(1, "u-two", 1, [1])
    site.read(1, other, keys)
    assert sum(site.downloads(keys).values()) > len(keys)  # those that node 0 owns
    before = sum(site.downloads(keys).values())
    with pytest.raises(Exception, match=r"refuse|forbidden|credentials"):
        site.read(1, site.ticket(1, "u-three", 1, [1]), keys[:1], "mallory")
    assert sum(site.downloads(keys).values()) >= before


def shard_of(site: Site, uid: str, rank: int, step: int, attempt: int = 1) -> tuple[Shard, bytes]:
    """A shard that is in the bucket."""
    path = f"ckpt/{uid}/step-{step:08}-attempt-{attempt}"
    key, data = f"{path}/rank-{rank:05}/model", random.Random(f"{uid} {rank} {step}").randbytes(1_500_000)
    site.server.objects[f"data/{key}"] = data
    sha256 = hashlib.sha256(data).hexdigest()
    about = {"uid": uid, "key": key, "checkpoint": path, "step": step, "attempt": attempt}
    return Shard(sha256=sha256, size_bytes=len(data), **about), data


def restored(site: Site, node: int, ticket: str, shard: Shard, data: bytes) -> str:
    """Restore a shard as the SDK does, and return its source."""
    with site.rank(node, ticket) as rank:
        found, source = rank.kept(shard)
    if not found:
        store = open_store("s3://data", access(site.folder, site.server.address, "alice"))
        found, source = store.read(shard.key), "bucket"
        store.close()
    assert found == data
    return source


def shards_on(site: Site, node: int) -> int:
    return len(site.caches[node].files("shards"))


@pytest.mark.slow
def test_after_a_fault_healthy_nodes_read_nothing_from_the_bucket_and_the_replaced_node_its_peer(site: Site) -> None:
    uid, before = "u-fault", [0, 1, 2]
    held = [shards_on(site, node) for node in range(NODES)]
    made = [shard_of(site, uid, rank, 40) for rank in range(3)]
    for node, (shard, data) in enumerate(made):
        with site.rank(node, site.ticket(node, uid, 1, before)) as rank:
            assert rank.keep(shard, data) == ""
    for node in before:
        eventually("the partner's copy", lambda node=node: shards_on(site, node) == held[node] + 2)
    site.caches[1].kill()  # the node is lost, with its disk; node 3 replaces it
    site.caches[0].kill()  # another cache crashes at the same time, and starts again
    site.caches[0].start()
    after, sent = [0, 3, 2], site.server.sent_bytes
    tickets = [site.ticket(node, uid, 2, after) for node in after]
    with ThreadPoolExecutor(3) as pool:
        loads = [pool.submit(restored, site, node, tickets[slot], *made[slot]) for slot, node in enumerate(after)]
        assert [load.result() for load in loads] == ["disk", "peer", "disk"]
    assert site.server.sent_bytes == sent
    assert not any(site.downloads([shard.key for shard, _ in made]).values())
    account = next(each for each in site.caches[3].status()["jobs"] if each["job"] == uid)
    assert account["bytes"] == {"bucket": 0, "peer": len(made[1][1]), "disk": 0}
    site.caches[1].start()


def test_without_copies_the_bucket_is_read(site: Site) -> None:
    uid = "u-gone"
    shard, data = shard_of(site, uid, 0, 40)
    with site.rank(2, site.ticket(2, uid, 2, [2, 3])):
        sent = site.server.sent_bytes
        assert restored(site, 3, site.ticket(3, uid, 2, [2, 3]), shard, data) == "bucket"
    assert site.server.sent_bytes == sent + len(data)


def test_rank_without_a_valid_ticket_keeps_and_finds_nothing(site: Site) -> None:
    shard, data = shard_of(site, "u-none", 0, 40)
    path = Path(site.ticket(0, "u-none", 1, [0]))
    path.write_text(json.dumps({**json.loads(path.read_text()), "key": "00" * 32}))
    with site.rank(0, str(path)) as rank:
        assert rank.joined["error"] == "not-permitted"
        assert rank.keep(shard, data) == "not-permitted"
        assert rank.kept(shard) == (b"", "not-permitted")


def test_rank_of_a_stale_attempt_keeps_nothing(site: Site) -> None:
    """A stale attempt on a node that was thought dead must not replace newer shards."""
    shard, data = shard_of(site, "u-stale", 0, 40)
    with site.rank(0, site.ticket(0, "u-stale", 2, [0])) as rank:
        assert rank.keep(shard, data) == ""
    with site.rank(0, site.ticket(0, "u-stale", 1, [0])) as rank:
        assert rank.keep(shard, data) == "not-permitted"


def test_confirmed_checkpoint_replaces_older_ones_on_the_node_and_its_partner(site: Site) -> None:
    uid, nodes = "u-keep", [2, 3]
    held = {node: shards_on(site, node) for node in nodes}
    confirmed = ""
    for step in (20, 40, 60, 80):
        for slot, node in enumerate(nodes):
            with site.rank(node, site.ticket(node, uid, 1, nodes)) as rank:
                assert rank.keep(*shard_of(site, uid, slot, step), confirmed) == ""
        confirmed = shard_of(site, uid, 0, step)[0].checkpoint
    for node in nodes:  # steps 60 (confirmed) and 80, each twice
        eventually("two checkpoints", lambda node=node: shards_on(site, node) == held[node] + 4)


@pytest.mark.slow
def test_nodes_that_ask_each_other_for_many_blocks_at_once_do_not_wait_in_a_circle(site: Site) -> None:
    """If requests to peers took the places of downloads, both nodes would wait for each other until a deadline."""
    keys, nodes = objects(site, "circle", 128, 1_000), [0, 1]
    tickets = {node: site.ticket(node, "u-circle", 1, nodes) for node in nodes}
    store = StoreIdentity("s3", site.server.address, "us-east-1", "", "data").text
    group = [Peer(slot, site.addresses[slot]) for slot in nodes]
    other_owns: dict[int, list[str]] = {0: [], 1: []}
    for key in keys:
        block = Wanted(store, key, etag_of(site.server.objects[f"data/{key}"]), 1_000, 0)
        other_owns[1 - ordered(block, group)[0].slot].append(key)
    for node in nodes:
        site.read(node, tickets[node], other_owns[1 - node][:1])  # it has a reader before the others ask
    parts = [(node, other_owns[node][start::32]) for start in range(32) for node in nodes]
    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(lambda part: site.read(part[0], tickets[part[0]], part[1]), parts))
    assert site.downloads(keys) == dict.fromkeys(keys, 1)
    for cache in site.caches[:2]:
        account = next(each for each in cache.status()["jobs"] if each["job"] == "u-circle")
        assert account["bytes"]["peer"] > 30_000
