"""The API for training programs: progress, checkpoints, ranks. Standard library only, Python 3.8+.

    import muster

    last = muster.last_checkpoint()
    step = load(last.path) if last else 0
    while step < 1000:
        step += 1
        loss = train_step()
        muster.report(step=step, total_steps=1000, metrics={"loss": loss})
        if step % 100 == 0 or muster.should_checkpoint():
            muster.save_checkpoint(step, write)  # write(path) makes a file or folder at path

Only rank 0 reports and saves; on other ranks `report` and `save_checkpoint` do nothing. Without Muster the same calls
work on one machine.
"""

from muster.sdk.checkpoints import load_checkpoint, save_checkpoint
from muster.sdk.errors import CheckpointNotSaved, ControllerUnavailable, NoGoodCheckpoint, StaleAttempt
from muster.sdk.place import attempt, local_rank, local_world_size, node_rank, rank, world_size
from muster.sdk.reports import backfilled, report, should_checkpoint
from muster.sdk.saves.checkpoint import Checkpoint
from muster.sdk.saves.checkpoint_files import CheckpointFiles
from muster.sdk.saves.own import checkpoint_dir, last_checkpoint
from muster.sdk.saves.saving import Saving

__all__ = [
    "Checkpoint",
    "CheckpointFiles",
    "CheckpointNotSaved",
    "ControllerUnavailable",
    "NoGoodCheckpoint",
    "Saving",
    "StaleAttempt",
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
