"""Streaming from the bucket with nothing cached: Muster's reader beside obstore alone, boto3 and other readers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from bench.data.caches import node_caches
from bench.data.processes import Measured, WorkerFailed, run_alone
from bench.data.stage import Stage

ALONE = ("obstore_whole", "obstore_ranges")
PEERS = ("s3torchconnector", "mosaicml_streaming")
WARM_PASSES = 8
Say = Callable[[str], None]


def warm(stage: Stage, repetitions: int, say: Say) -> dict[str, list[Measured]]:
    """The same shards from the node cache, which has them, beside plain files; both lie in the page cache.

    Files are read as bytes, and samples are streamed.
    """
    results: dict[str, list[Measured]] = defaultdict(list)
    with node_caches(stage.folder / "warm", 1) as (cache,):
        environment = {**stage.server.environment(), **cache.environment()}
        plain = {"url": str(stage.folder / "files")}
        sides = {
            "plain_files": ("plain_files", {}),
            "cached_files": ("cached_files", {}),
            "streamed_files": ("muster_stream", plain),
            "streamed_cache": ("muster_stream", {}),
        }
        for repetition in range(repetitions + 1):
            for name, (side, more) in sides.items():
                env = {name: environment[name] for name in environment if not more or "CACHE" not in name}
                done = run_alone(side, stage.settings(passes=WARM_PASSES, **more), env)
                if repetition > 0:  # the first one fills the cache
                    results[name].append(done)
                    say(line(name, done))
    return results


def line(side: str, done: Measured) -> str:
    """One measurement for people."""
    return f"{side:>20} {done.mb_per_s:7.0f} MB/s  {done.cpu_s_per_gb:5.2f} CPU s/GB  {done.peak_mb:5.0f} MB"


def cold(stage: Stage, repetitions: int, say: Say) -> dict[str, list[Measured]]:
    """Each side reads all shards once from the bucket, by turns. A side that fails is left out from then on."""
    sides: dict[str, Path | None] = dict.fromkeys(
        (*ALONE, "muster_store", "muster_stream", "muster_stream_in_order", "boto3")
    )
    if stage.peers is None:
        say(f"without {' and '.join(PEERS)}: {stage.no_peers}")
    else:
        sides |= dict.fromkeys(PEERS, stage.peers)
    results: dict[str, list[Measured]] = defaultdict(list)
    for repetition in range(repetitions):
        for side in list(sides)[:: 1 if repetition % 2 == 0 else -1]:
            try:
                done = run_alone(side, stage.settings(), stage.server.environment(), sides[side])
            except WorkerFailed as error:
                say(f"left out: {error}")
                del sides[side]
                continue
            results[side].append(done)
            say(line(side, done))
    return results
