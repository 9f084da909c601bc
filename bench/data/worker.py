"""One side of the bench in a process of its own: prepares, says so, waits for a line on stdin, and measures.

    python bench/data/worker.py SIDE '{"url": ..., ...}'

It runs in the environments of the peers too, so it imports nothing of Muster except in Muster's own sides.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

Settings = dict[str, Any]
"""bucket, prefix, keys, region, endpoint, folder (for files of this process), and what a side adds."""
Done = tuple[int, int]
"""Bytes and samples."""
Run = Callable[[], Done]

RANGE_BYTES = 8 << 20
CHUNK_BYTES = 1 << 20


def obstore_store(settings: Settings) -> Any:
    from obstore.store import S3Store

    return S3Store(
        settings["bucket"],
        prefix=settings["prefix"],
        endpoint=settings["endpoint"],
        region=settings["region"],
        client_options={"allow_http": True},
    )


def pooled(jobs: list[Any], work: Callable[[Any], int], threads: int) -> Run:
    def run() -> Done:
        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(work, jobs)), 0

    return run


def obstore_whole(settings: Settings) -> Run:
    """Whole objects into memory, eight at once."""
    import obstore

    store = obstore_store(settings)
    return pooled(settings["keys"], lambda key: len(obstore.get(store, key).bytes()), 8)


def obstore_ranges(settings: Settings) -> Run:
    """Ranges of 8 MiB into memory, four at once: the fastest that keeps what it reads."""
    import obstore

    store = obstore_store(settings)
    sizes = {key: obstore.head(store, key)["size"] for key in settings["keys"]}
    parts = [(key, start) for key in settings["keys"] for start in range(0, sizes[key], RANGE_BYTES)]

    def read(part: tuple[str, int]) -> int:
        key, start = part
        end = min(start + RANGE_BYTES, sizes[key])
        return len(obstore.get_range(store, key, start=start, end=end))

    return pooled(parts, read, 4)


def boto3_whole(settings: Settings) -> Run:
    """Whole objects into memory, eight at once."""
    import boto3
    from botocore.config import Config

    client = boto3.client("s3", config=Config(max_pool_connections=8))

    def read(key: str) -> int:
        answer = client.get_object(Bucket=settings["bucket"], Key=f"{settings['prefix']}/{key}")
        return len(answer["Body"].read())

    return pooled(settings["keys"], read, 8)


def s3torchconnector(settings: Settings) -> Run:
    """Amazon's connector for PyTorch: its iterable data set, whole objects, one after the other as it has them."""
    from s3torchconnector import S3IterableDataset

    data = S3IterableDataset.from_objects(
        [f"s3://{settings['bucket']}/{settings['prefix']}/{key}" for key in settings["keys"]],
        region=settings["region"],
        endpoint=settings["endpoint"],
        transform=lambda entry: len(entry.read()),
    )
    return lambda: (sum(data), 0)


def mosaicml_streaming(settings: Settings) -> Run:
    """MosaicML's data set over shards in its own format, in the stored order, samples of both columns."""
    from streaming import StreamingDataset

    data = StreamingDataset(
        remote=f"s3://{settings['bucket']}/{settings['mds']}",
        local=os.path.join(settings["folder"], "mds"),
        shuffle=False,
        batch_size=settings["batch"],
    )
    return lambda: counted(len(sample["jpg"]) + len(sample["cls"]) for sample in data)


def mosaicml_write(settings: Settings) -> Run:
    """Not a side: writes the same samples in MosaicML's format into a folder."""
    sys.path.insert(0, settings["root"])
    from streaming import MDSWriter

    from bench.data.samples import Size, samples

    size = Size(*settings["size"])

    def run() -> Done:
        columns = {"jpg": "bytes", "cls": "bytes"}
        with MDSWriter(out=settings["out"], columns=columns, size_limit=settings["shard_bytes"]) as out:
            for shard in range(size.shards):
                for _, image, label in samples(shard, size.samples):
                    out.write({"jpg": image, "cls": label})
        return size.total_bytes, size.shards * size.samples

    return run


def plain_files(settings: Settings) -> Run:
    """Reads files of the local disk, a MiB at a time into one buffer."""
    buffer = bytearray(CHUNK_BYTES)

    def run() -> Done:
        total = 0
        for key in settings["keys"] * settings["passes"]:
            with open(os.path.join(settings["files"], key), "rb", buffering=0) as file:
                while read := file.readinto(buffer):
                    total += read
        return total, 0

    return run


def muster_stream(settings: Settings, shuffle: bool) -> Run:
    """Muster's reader: samples of all shards, from the bucket, from a folder, or through the node cache."""
    from muster.sdk.data import Sample, stream

    options = {
        "seed": 7,
        "global_batch": settings["batch"],
        "shuffle": shuffle,
        "epochs": 1,
        "rank": settings.get("rank", 0),
        "world_size": settings.get("world_size", 1),
    }
    with stream(settings["url"], **options) as first:
        next(iter(first))  # the index is built once and stored

    def sizes() -> Iterator[int]:
        with stream(settings["url"], **options) as batches:
            for batch in batches:
                for sample in cast("list[Sample]", batch):
                    yield sum(len(data) for data in sample.data.values())

    return lambda: counted(sizes())


def muster_store(settings: Settings) -> Run:
    """Muster's store: ranges of 8 MiB into memory, four at once, as obstore_ranges."""
    from muster.sdk.data.access import access_from
    from muster.sdk.data.stores import open_store

    store = open_store(settings["url"], access_from("MUSTER_DATA"))
    sizes = {key: store.head(key) for key in settings["keys"]}
    parts = [(key, start) for key in settings["keys"] for start in range(0, sizes[key].size_bytes, RANGE_BYTES)]
    return pooled(parts, lambda part: len(store.read(part[0], part[1], RANGE_BYTES, sizes[part[0]].etag)), 4)


def cached_files(settings: Settings) -> Run:
    """Shards through the node cache, a MiB at a time into one buffer, as plain_files."""
    from muster.sdk.data.access import access_from
    from muster.sdk.data.cache_client import cache_from_environment
    from muster.sdk.data.stores import open_store

    access = access_from("MUSTER_DATA")
    store = open_store(settings["url"], access)
    known = [store.head(key) for key in settings["keys"]]
    client = cache_from_environment()
    assert client is not None
    buffer = bytearray(CHUNK_BYTES)

    def run() -> Done:
        total = 0
        for info in known * settings["passes"]:
            with client.open_object(settings["url"], access, info.key, info.etag, info.size_bytes) as file:
                while read := file.readinto(buffer):
                    total += read
        return total, 0

    return run


def restore_bucket(settings: Settings) -> Run:
    """Reads shards of a checkpoint from the bucket into files, with their checksums, as a restore does."""
    from muster.sdk.data.access import access_from
    from muster.sdk.data.stores import open_store

    store = open_store(settings["checkpoint"], access_from("MUSTER_CHECKPOINT"))

    def run() -> Done:
        total = 0
        for shard in settings["shards"]:
            path = os.path.join(settings["folder"], shard["key"])
            with open(path, "wb") as file:
                total += store.read_into(shard["key"], file)
            with open(path, "rb") as file:
                assert hashlib.file_digest(file, "sha256").hexdigest() == shard["sha256"]
        return total, 0

    return run


def restore_node(settings: Settings) -> Run:
    """Reads the same shards through the node cache: from its disk, or from a peer."""
    from muster.sdk.saves.manifest import Shard
    from muster.sdk.saves.node_shards import NodeShards

    node = NodeShards(os.environ["MUSTER_CACHE_SOCKET"], os.environ["MUSTER_CACHE_TICKET"])

    def run() -> Done:
        total = 0
        for each in settings["shards"]:
            shard = Shard(each["key"], 0, each["size"], each["sha256"], "")
            kept = node.kept(shard, settings["checkpoint"], 1, 1, 60.0)
            assert kept.source == settings["source"], kept.source
            digest = hashlib.sha256()
            for piece in kept.read(shard.size_bytes):
                digest.update(piece)
                total += len(piece)
            os.close(kept.descriptor)
            assert digest.hexdigest() == each["sha256"]
        return total, 0

    return run


def saving(settings: Settings, background: bool) -> Run:
    """Saves a state of pseudo-random bytes; each save begins when the one before has ended."""
    import muster

    state = bytearray(os.urandom(CHUNK_BYTES)) * (settings["state_bytes"] // CHUNK_BYTES)

    def write(path: str) -> None:
        with open(path, "wb", buffering=0) as file:
            for start in range(0, len(state), CHUNK_BYTES):
                file.write(memoryview(state)[start : start + CHUNK_BYTES])

    def run() -> Done:
        for step in range(settings["saves"]):
            began = time.monotonic()
            saved = muster.save_checkpoint(step, write, background=background)
            blocked_s.append(time.monotonic() - began)
            if isinstance(saved, muster.Saving):
                saved.wait()
        return len(state) * settings["saves"], 0

    return run


blocked_s: list[float] = []
"""How long each save kept the program from going on."""


def counted(sizes: Iterator[int]) -> Done:
    total = samples = 0
    for size in sizes:
        total += size
        samples += 1
    return total, samples


SIDES: dict[str, Callable[[Settings], Run]] = {
    "obstore_whole": obstore_whole,
    "obstore_ranges": obstore_ranges,
    "muster_store": muster_store,
    "muster_stream": lambda settings: muster_stream(settings, shuffle=True),
    "muster_stream_in_order": lambda settings: muster_stream(settings, shuffle=False),
    "cached_files": cached_files,
    "muster_save": lambda settings: saving(settings, background=False),
    "muster_background_save": lambda settings: saving(settings, background=True),
    "restore_bucket": restore_bucket,
    "restore_node": restore_node,
    "boto3": boto3_whole,
    "s3torchconnector": s3torchconnector,
    "mosaicml_streaming": mosaicml_streaming,
    "mosaicml_write": mosaicml_write,
    "plain_files": plain_files,
}


def cpu_s() -> float:
    """User and system time of this process and of children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_mb() -> float:
    """Of this program alone: what getrusage says includes the process that started it."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) / 1024


def main() -> None:
    side, settings = sys.argv[1], json.loads(sys.argv[2])
    run = SIDES[side](settings)
    before_mb = peak_mb()
    print("ready", flush=True)
    if not sys.stdin.readline():
        sys.exit("the bench ended")
    cpu, began = cpu_s(), time.monotonic()
    total, samples = run()
    wall = time.monotonic() - began
    done = {
        "seconds": wall,
        "bytes": total,
        "samples": samples,
        "cpu_s": cpu_s() - cpu,
        "peak_mb": peak_mb(),
        "grown_mb": peak_mb() - before_mb,
        "blocked_s": statistics.median(blocked_s) if blocked_s else 0.0,
    }
    print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
