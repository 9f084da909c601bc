"""Node caches of an embedded cluster, and `muster data`: a job reads an object store through them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest

from tests.support.awsserver import CREDENTIALS, aws_server
from tests.support.kubectl import kubectl_program
from tests.support.musterprogram import Muster, carrying, muster_in
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

URL = "s3://data/train"
SIZES = {"0.bin": 3 << 20, "1.bin": 2 << 20, "empty.bin": 0}
TOTAL = sum(SIZES.values())
READ = """
import os
from muster.sdk.data.access import access_from
from muster.sdk.data.cache_client import cache_from_environment
from muster.sdk.data.stores import open_store
access, url = access_from("MUSTER_DATA"), os.environ["MUSTER_DATA_URL"]
store, cache = open_store(url, access), cache_from_environment()
for each in store.list():
    with cache.open_object(url, access, each.key, each.etag, each.size_bytes) as file:
        assert len(file.read()) == each.size_bytes
"""


class World(NamedTuple):
    """A cluster of two nodes, and an S3 server."""

    muster: Muster
    address: str
    log: Path

    @property
    def store(self) -> tuple[str, ...]:
        """Options that name the server."""
        return (f"--endpoint={self.address}", "--region=us-east-1")

    def downloads(self) -> Counter[str]:
        """How often each object was read from the server so far."""
        return Counter(re.findall(r"GET /data/train/(\S+) HTTP", self.log.read_text(errors="replace")))

    def caches(self) -> dict[str, int]:
        """Process IDs of caches by node."""
        found = carrying(f"HOME={self.muster.home}")
        named = {pid: re.search(r"muster\.data\.cache --node=(\S+)", command) for pid, command in found.items()}
        return {match[1]: pid for pid, match in named.items() if match}

    def status(self, *arguments: str) -> dict[str, dict[str, Any]]:
        """The answer of each node that answers."""
        listed = json.loads(self.muster.run("data", "status", "-o", "json", *arguments).stdout)["nodes"]
        return {each["node"]: each for each in listed if "error" not in each}


def client(address: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=address,
        region_name="us-east-1",
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    )


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="m-"))
    try:
        with aws_server(folder) as address, muster_in(folder / "home") as muster:
            s3 = client(address)
            s3.create_bucket(Bucket="data")
            for name, size in SIZES.items():
                s3.put_object(Bucket="data", Key=f"train/{name}", Body=os.urandom(size))
            s3.put_object(Bucket="data", Key="training/other.bin", Body=b"other")
            muster.env |= CREDENTIALS
            muster.ok("up", "--nodes", "2", "--gpus", "1", "--cache", "64Mi")
            secret = [f"--from-literal={name}={CREDENTIALS[name]}" for name in list(CREDENTIALS)[:2]]
            muster.ok("create", "secret", "generic", "store", *secret, program=kubectl_program())
            yield World(muster, address, folder / "moto.log")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_job(world: World, name: str) -> None:
    """Run a job with two ranks on each of two nodes, which all read the whole data set."""
    code = world.muster.home / "code"
    code.mkdir(exist_ok=True)
    (code / "read.py").write_text(READ)
    store = ("--store-endpoint", world.address, "--store-region", "us-east-1", "--store-secret", "store")
    shape = ("--nodes", "2", "--ranks-per-node", "2", "--launcher", "none", "--name", name)
    world.muster.ok("run", *shape, "--data", URL, *store, "--follow", "read.py", cwd=code)


def test_a_job_reads_each_object_once_per_node_through_caches_that_start_on_request(world: World) -> None:
    before = world.muster.run("data", "status")
    assert (before.returncode, world.caches()) == (4, {})
    assert "no node has a data cache yet" in before.stderr
    listed = world.muster.json("data", "ls", URL, *world.store)
    assert {each["key"]: each["bytes"] for each in listed["objects"]} == SIZES
    assert (listed["bytes"], listed["more"]) == (TOTAL, False)
    assert world.caches() == {}, "a list needs no cache"

    run_job(world, "first")
    assert world.caches().keys() == {"node-0", "node-1"}
    downloads = world.downloads()
    assert downloads.keys() == {"0.bin", "1.bin"}
    assert max(downloads.values()) <= 2, "one download per object and node, for two ranks on each"
    nodes = world.status()
    assert {name: each["used_bytes"] >= TOTAL for name, each in nodes.items()} == {"node-0": True, "node-1": True}
    read: Counter[str] = Counter()
    for each in nodes.values():
        for job in each["jobs"]:
            read.update(job["bytes"])
    assert read["bucket"] + read["peer"] == 2 * TOTAL, (
        "each node gets each byte once, from the bucket or the other node"
    )
    assert read["disk"] >= 2 * TOTAL, "and its second rank reads it from the disk"
    assert read["bucket"] == sum(SIZES[key] * count for key, count in downloads.items())
    (job,) = world.muster.json("data", "status", "--job", "first", "--node", "node-1")["jobs"]
    assert (job["name"], job["nodes"], job["readers"]) == ("default/first", 1, 0)
    shown = world.muster.ok("data", "status")
    assert re.search(r"^node-0 +ok +\d+(\.\d)? MiB +64 MiB ", shown, re.MULTILINE)
    assert re.search(r"^default/first +2 +\d+% ", shown, re.MULTILINE)


def test_evict_removes_what_is_named_and_warm_brings_it_back(world: World) -> None:
    muster = world.muster
    if not world.caches():
        run_job(world, "second")
    muster.ok("data", "warm", URL, *world.store, "--node", "node-0", "--node", "node-1")
    started = world.downloads()
    assert muster.json("data", "warm", URL, *world.store, "--node", "node-0")["nodes"] == [
        {"node": "node-0", "bytes": {"bucket": 0, "peer": 0, "disk": TOTAL}}
    ]
    (nothing, _) = muster.json("data", "evict", "s3://data/trai")["nodes"]
    assert nothing == {"node": "node-0", "blocks": 0, "bytes": 0, "kept": 0}
    (one,) = muster.json("data", "evict", f"{URL}/1.bin", "--node", "node-0")["nodes"]
    assert one["blocks"] >= 1, "a copy from a peer is a block of its own"
    assert one["bytes"] >= SIZES["1.bin"]
    assert all(each["blocks"] >= 1 for each in muster.json("data", "evict", URL)["nodes"])
    assert world.downloads() == started
    warmed = muster.json("data", "warm", URL, *world.store, "--node", "node-1")
    assert warmed["bytes"] == TOTAL
    assert warmed["nodes"] == [{"node": "node-1", "bytes": {"bucket": TOTAL, "peer": 0, "disk": 0}}]
    assert world.downloads() - started == Counter({"0.bin": 1, "1.bin": 1})
    assert [each["blocks"] for each in muster.json("data", "evict", "--all")["nodes"]] == [0, 2]


def test_a_killed_cache_is_started_again_and_one_of_a_vanished_node_is_not(world: World) -> None:
    muster = world.muster
    if not world.caches():
        run_job(world, "third")
    muster.ok("data", "warm", URL, *world.store, "--node", "node-0")
    killed = world.caches()["node-0"]
    os.kill(killed, signal.SIGKILL)
    eventually("the cache runs again", lambda: world.caches().get("node-0", killed) != killed)
    eventually("it answers", lambda: "node-0" in world.status())
    assert muster.json("data", "warm", URL, *world.store, "--node", "node-0")["nodes"] == [
        {"node": "node-0", "bytes": {"bucket": 0, "peer": 0, "disk": TOTAL}}
    ], "blocks outlive the process"
    muster.ok("fault", "node", "node-1")
    assert world.caches().keys() == {"node-0"}
    assert world.status().keys() == {"node-0"}
    assert muster.run("data", "status").returncode == 1
    muster.ok("fault", "return", "node-1")
    eventually("its cache is back", lambda: world.status().keys() == {"node-0", "node-1"})


def test_caches_continue_with_a_cluster_whose_state_is_kept(world: World) -> None:
    muster = world.muster
    if not world.caches():
        run_job(world, "kept")
    muster.ok("data", "warm", URL, *world.store, "--node", "node-0")
    os.kill(json.loads((muster.folder() / "daemon.json").read_text())["pid"], signal.SIGKILL)
    eventually("its programs end with the daemon", lambda: not world.caches())
    assert "continues" in muster.ok("up")
    eventually("the caches are back", lambda: world.status().keys() == {"node-0", "node-1"})
    assert muster.json("data", "warm", URL, *world.store, "--node", "node-0")["nodes"] == [
        {"node": "node-0", "bytes": {"bucket": 0, "peer": 0, "disk": TOTAL}}
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("ls", "s3://nowhere/x"), 2, "the bucket does not exist"),
        (("ls", "s3://key:secret@data/x"), 2, "Put credentials into the Secret, not into the URL"),
        (("ls", "no job"), 2, "'no job' is neither a URL nor the name of a job"),
        (("ls", "missing"), 4, "no training job 'missing'"),
        (("ls", URL, "--credentials", "/nonexistent"), 2, "--credentials /nonexistent is not a folder"),
        (("warm", URL), 2, "name the nodes with --node"),
        (("warm", f"{URL}/none", "--node", "node-0"), 4, "has no data to download"),
        (("warm", URL, "--node", "node-9"), 4, "no node cache on node-9"),
        (("evict",), 2, "name one of SOURCE and --all"),
        (("evict", URL, "--all"), 2, "name one of SOURCE and --all"),
        (("status", "--node", "node-9"), 4, "no node cache on node-9"),
    ],
)
def test_bad_input_is_refused_with_what_to_change(
    world: World, arguments: tuple[str, ...], code: int, said: str
) -> None:
    if not world.caches():
        run_job(world, "fourth")
    where = world.store if arguments[0] != "status" else ()
    done = world.muster.run("data", *arguments, *where)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert "secret" not in done.stderr.replace("the Secret", "")


def test_a_cluster_keeps_its_limit_and_may_have_no_caches(world: World) -> None:
    muster = world.muster
    assert "is up already" in muster.ok("up", "--cache", "64Mi")
    other = muster.run("up", "--cache", "1Gi")
    assert (other.returncode, "data caches of 64Mi" in other.stderr) == (5, True), other.stderr
    for size in ("1Mi", "much", "-1"):
        bad = muster.run("up", "--name", "none", "--cache", size)
        assert (bad.returncode, f"--cache {size}: not a size of at least 64Mi, and not 0" in bad.stderr) == (2, True)
    with muster_in(muster.home.parent / "bare") as bare:
        bare.ok("up", "--nodes", "1", "--gpus", "0", "--cache", "0")
        done = bare.run("data", "status")
        assert (done.returncode, "was started without data caches" in done.stderr) == (4, True), done.stderr
        controllers = [command for command in bare.processes().values() if " controller " in command]
        assert len(controllers) == 1
        assert "--cache-volume" not in controllers[0]


def test_data_larger_than_the_cache_is_not_begun(world: World) -> None:
    if not world.caches():
        run_job(world, "fifth")
    s3 = client(world.address)
    for number in range(5):
        s3.put_object(Bucket="data", Key=f"large/{number}", Body=bytes(16 << 20))
    done = world.muster.run("data", "warm", "s3://data/large", *world.store, "--node", "node-0")
    assert done.returncode == 1
    assert "the data has 80 MiB, and the cache has room for 64 MiB: name a smaller prefix" in done.stdout
