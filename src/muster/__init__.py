"""Muster: the AI-training layer for Kubernetes. A training program that imports it gets the SDK."""

from muster.sdk import (
    Checkpoint,
    CheckpointNotSaved,
    ControllerUnavailable,
    NoGoodCheckpoint,
    Saving,
    StaleAttempt,
    attempt,
    backfilled,
    checkpoint_dir,
    last_checkpoint,
    load_checkpoint,
    local_rank,
    local_world_size,
    node_rank,
    rank,
    report,
    save_checkpoint,
    should_checkpoint,
    world_size,
)

__version__ = "0.1.0"

__all__ = [
    "Checkpoint",
    "CheckpointNotSaved",
    "ControllerUnavailable",
    "NoGoodCheckpoint",
    "Saving",
    "StaleAttempt",
    "__version__",
    "attempt",
    "backfilled",
    "checkpoint_dir",
    "last_checkpoint",
    "load_checkpoint",
    "local_rank",
    "local_world_size",
    "node_rank",
    "rank",
    "report",
    "save_checkpoint",
    "should_checkpoint",
    "world_size",
]
