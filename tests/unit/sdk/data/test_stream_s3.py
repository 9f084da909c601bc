"""The streaming reader on an S3 server, with failing requests between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from muster.sdk.data import Access, BrokenShard, Forbidden, ObjectChanged, Store, Stream, stream
from tests.support.faultyproxy import Fault, FaultyProxy
from tests.support.shardstore import shard_of

OpenStore = Callable[..., Store]
SAMPLES = 4 * 20
BAD = "shard-2.tar"


@pytest.fixture
def direct(opened: OpenStore, s3_url: str, s3: Access) -> Store:
    """An indexed data set of 4 shards with 20 samples, without the proxy."""
    store = opened(s3_url, s3, 20.0)
    for number in range(4):
        store.put(f"shard-{number}.tar", shard_of(number, 20, 2000))
    stream(store=store, seed=0, global_batch=1).close()
    return store


@pytest.fixture
def store(opened: OpenStore, s3_url: str, behind_proxy: Access, direct: Store) -> Store:
    """The same data set through the proxy."""
    return opened(s3_url, behind_proxy, 20.0)


def epoch(store: Store, **options: object) -> Stream:
    return stream(store=store, seed=1, global_batch=8, epochs=1, **options)  # type: ignore[arg-type]


def keys(batches: Stream) -> list[str]:
    with batches:
        return [sample.key for batch in batches for sample in batch]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_webdataset_112_connections_that_break_in_a_shard_lose_no_sample(
    store: Store, direct: Store, proxy: FaultyProxy
) -> None:
    """The read continues where it stopped: neither the whole shard again, nor a sample less."""
    expected = keys(epoch(direct))
    proxy.add(Fault(method="GET", path=".tar", times=6, cut_after=3000))
    proxy.add(Fault(method="GET", path=".tar", times=3, status=503, headers={"Retry-After": "1"}))
    assert keys(epoch(store)) == expected
    assert len(set(expected)) == SAMPLES


@pytest.mark.slow
def test_forbidden_shard_follows_the_policy(store: Store, proxy: FaultyProxy) -> None:
    proxy.add(Fault(method="GET", path=BAD, times=None, status=403))
    with pytest.raises(Forbidden, match=BAD):
        keys(epoch(store))
    batches = epoch(store, bad_shards="skip")
    assert len(keys(batches)) == SAMPLES
    assert [record[:3] for record in batches.skipped] == [(0, BAD, "0-19")]


@pytest.mark.slow
def test_bits_that_flip_on_the_way_are_noticed(store: Store, proxy: FaultyProxy) -> None:
    fault = Fault(method="GET", path=BAD, times=1, flip_bit_at=700)
    proxy.add(fault)
    assert len(set(keys(epoch(store)))) == SAMPLES  # the second read was right
    proxy.add(Fault(method="GET", path=BAD, times=None, flip_bit_at=700))
    with pytest.raises(BrokenShard, match=rf"{BAD}: sample \d+.* has a wrong checksum"):
        keys(epoch(store))


def test_shard_that_is_replaced_while_it_is_read_is_an_error(direct: Store) -> None:
    batches = epoch(direct, read_ahead_bytes=0)
    with batches:
        first = next(batches)
        for number in range(4):
            direct.put(f"shard-{number}.tar", shard_of(number + 9, 20, 2000))
        with pytest.raises(ObjectChanged, match=r"shard-\d\.tar"):
            next(batches)
    assert all(sample.key[1] in "0123" for sample in first)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_forked_process_gets_an_error_instead_of_a_hang(s3_url: str, s3: Access, direct: Store) -> None:
    """A data loader forks its workers after the parent has read from the bucket. Runs in a process of its own."""
    program = """
import json, os, sys
from muster.sdk.data import stream

batches = stream(seed=1, global_batch=8)
first = [sample.key for sample in next(batches)]
ours, theirs = os.pipe()
child = os.fork()
if not child:
    try:
        next(batches)
    except Exception as error:
        os.write(theirs, str(error).encode())
    os._exit(0)
os.close(theirs)
print(json.dumps([open(ours, "rb").read().decode(), [sample.key for sample in next(batches)]]))
os.waitpid(child, 0)
batches.close()
"""
    environment = {
        "MUSTER_DATA_URL": s3_url,
        "MUSTER_DATA_ENDPOINT": s3.endpoint,
        "MUSTER_DATA_REGION": s3.region,
        "MUSTER_DATA_CREDENTIALS": s3.credentials_dir,
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    error, own = json.loads(done.stdout)
    assert "multiprocessing_context='spawn'" in error
    assert len(own) == 8
