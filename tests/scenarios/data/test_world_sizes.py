"""A job streams from a bucket and loses a rank, then a node: its samples are those of a run without faults."""

from __future__ import annotations

import io
import json
import os
import signal
import tarfile
from pathlib import Path

import pytest

from muster.kube.objects.core import Secret
from muster.kube.objects.meta import ObjectMeta
from muster.sdk.data import Store, stream
from tests.scenarios.data.conftest import BUCKET
from tests.scenarios.trainingjobs.conftest import Arena
from tests.support.anyserver import BY_RANKS
from tests.support.awsserver import CREDENTIALS
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SHARDS, SAMPLES, BATCH, SEED, EPOCHS = 5, 30, 12, 3, 3
STEPS = SHARDS * SAMPLES * EPOCHS // BATCH
SAVE_EVERY = 3
HELD = {1: 8, 2: 20}
"""Ranks of these attempts stop after this step, until they are killed."""


def program(folder: Path) -> str:
    """Saves from all ranks, with the position in the data."""
    return f"""
    import json, os, pathlib, time
    import muster
    from muster.sdk.data import stream
    folder = pathlib.Path({str(folder)!r})
    attempt, rank = muster.attempt(), muster.rank()
    (folder / ("pid-%d-%d" % (attempt, rank))).write_text(str(os.getpid()))
    loaded = muster.load_checkpoint(lambda files: files.cursor)
    cursor, step = (loaded[0], loaded[1].step) if loaded else (None, 0)
    with stream(seed={SEED}, global_batch={BATCH}, epochs={EPOCHS}, cursor=cursor) as batches:
        for batch in batches:
            step += 1
            with open(folder / ("seen-%d-%d" % (attempt, rank)), "a") as file:
                file.write(json.dumps([step, [sample.key for sample in batch]]) + chr(10))
            muster.report(step=step)
            if step % {SAVE_EVERY} == 0:
                muster.save_checkpoint(
                    step, lambda path: pathlib.Path(path).write_text("%d of %d" % (rank, step)),
                    sharded=True, cursor=batches.cursor(),
                )
            while step == {HELD}.get(attempt):
                time.sleep(0.05)
"""


@BY_RANKS
async def test_sample_sequence_is_the_same_after_a_kill_and_with_one_node_less(arena: Arena, bucket: Store) -> None:
    """Issue 14.3: also mosaicml/streaming 880, where a resumed run began again with sample 0."""
    for number in range(SHARDS):
        bucket.put(f"data/shard-{number}.tar", shard(number))
    secret = Secret(
        metadata=ObjectMeta(name="store", namespace=arena.namespace),
        data={name: value.encode() for name, value in CREDENTIALS.items() if name.startswith("AWS_") and "KEY" in name},
    )
    await arena.client.create(secret)
    access = {
        "endpoint": os.environ["AWS_ENDPOINT_URL"],
        "region": CREDENTIALS["AWS_DEFAULT_REGION"],
        "credentials": {"secretName": "store"},
    }
    await arena.submit(
        "train",
        program(arena.folder),
        replicas=3,
        minReplicas=2,
        noSpare="Shrink",
        data={"url": f"s3://{BUCKET}/data", **access},
        checkpoint={"path": f"s3://{BUCKET}/checkpoints", **access},
    )
    await held(arena.folder, 1, ranks=3)
    os.kill(int((arena.folder / "pid-1-1").read_text()), signal.SIGKILL)
    await held(arena.folder, 2, ranks=3)
    pods = await arena.pods("train")
    name = next(pod.spec.node_name for pod in pods if pod.name == "train-1-1")
    next(node for node in arena.nodes if node.name == name).lose()
    status = await arena.phase("train", "Succeeded", 3)

    assert status.size == 2
    assert sequence(arena.folder) == uninterrupted(f"s3://{BUCKET}/data")
    assert [(each.step, each.attempt, each.shards) for each in status.checkpoints[:2]] == [(36, 3, 2), (33, 3, 2)]
    assert not status.quarantined_checkpoints


def shard(number: int) -> bytes:
    """A tar file whose samples have keys that say which they are."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for sample in range(SAMPLES):
            entry = tarfile.TarInfo(f"{number}-{sample}.txt")
            entry.size = 4
            archive.addfile(entry, io.BytesIO(b"%4d" % sample))
    return out.getvalue()


async def held(folder: Path, attempt: int, ranks: int) -> None:
    """Wait until all ranks of the attempt have reached the step at which they stop."""

    def reached() -> bool:
        return all([step for step, _ in seen(folder, attempt, rank)][-1:] == [HELD[attempt]] for rank in range(ranks))

    await until(f"attempt {attempt} has reached step {HELD[attempt]}", reached)


def seen(folder: Path, attempt: int, rank: int) -> list[tuple[int, list[str]]]:
    """Steps of a rank, and the samples that it got in them."""
    path = folder / f"seen-{attempt}-{rank}"
    return [(step, keys) for step, keys in map(json.loads, path.read_text().splitlines())] if path.exists() else []


def sequence(folder: Path) -> list[list[str]]:
    """The samples of each step in the order of ranks. If attempts have repeated a step, the last one counts."""
    steps: dict[int, list[str]] = {}
    for attempt in (1, 2, 3):
        found: dict[int, list[str]] = {}
        for rank in range(3):
            for step, keys in seen(folder, attempt, rank):
                found[step] = found.get(step, []) + keys
        steps.update(found)
    assert sorted(steps) == list(range(1, STEPS + 1))
    return [steps[step] for step in sorted(steps)]


def uninterrupted(url: str) -> list[list[str]]:
    """The samples of each step in one process that nothing interrupts."""
    with stream(url, seed=SEED, global_batch=BATCH, epochs=EPOCHS, rank=0, world_size=1) as batches:
        return [[sample.key for sample in batch] for batch in batches]
