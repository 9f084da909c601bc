"""Streaming from the bucket with nothing cached: Muster's reader beside obstore alone, boto3 and other readers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from bench.data.processes import Measured, WorkerFailed, run_alone
from bench.data.stage import Stage

ALONE = ("obstore_whole", "obstore_ranges")
PEERS = ("s3torchconnector", "mosaicml_streaming")
Say = Callable[[str], None]


def cold(stage: Stage, repetitions: int, say: Say) -> dict[str, list[Measured]]:
    """Each side reads all shards once from the bucket, by turns. A side that fails is left out from then on."""
    sides: dict[str, Path | None] = dict.fromkeys((*ALONE, "muster_stream", "boto3"))
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
            say(f"{side:>20} {done.mb_per_s:7.0f} MB/s  {done.cpu_s_per_gb:5.2f} CPU s/GB  {done.peak_mb:5.0f} MB")
    return results
