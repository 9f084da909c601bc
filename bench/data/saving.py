"""Saves of checkpoints to the bucket: how long training waits, in the foreground and in the background."""

from __future__ import annotations

from collections import defaultdict

from bench.data.processes import Measured, run_alone
from bench.data.reading import Say
from bench.data.server import BUCKET
from bench.data.stage import Stage

SAVES = 3


def saves(stage: Stage, repetitions: int, say: Say) -> dict[str, list[Measured]]:
    """One rank saves its state several times, each time after the save before has ended, by turns both ways."""
    results: dict[str, list[Measured]] = defaultdict(list)
    for repetition in range(repetitions):
        for side in ("muster_save", "muster_background_save"):
            environment = {
                **stage.server.environment(),
                "MUSTER_CHECKPOINT_DIR": f"s3://{BUCKET}/checkpoints/{side}-{repetition}",
                "MUSTER_SAVE_DIR": str(stage.folder / "saves"),
            }
            settings = stage.settings(state_bytes=stage.total_bytes // 2, saves=SAVES)
            done = run_alone(side, settings, environment)
            results[side].append(done)
            say(
                f"{side:>24} blocks {done.blocked_s:6.3f} s of {done.seconds:6.2f} s, "
                f"{done.cpu_s_per_gb:5.2f} CPU s/GB {done.peak_mb:5.0f} MB"
            )
    return results
