"""Data-parallel training on streamed samples: softmax regression on digits in tar shards, over any number of MPI ranks.

    python make_shards.py shards && MUSTER_DATA_URL=shards python train.py

The samples of a step depend on the seed alone, and not on the number of ranks. The position in the stream is saved with
each checkpoint, so a run that was interrupted and resumed has seen exactly the samples of an uninterrupted one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from typing import Any

import numpy as np

import muster
from muster.sdk.data import stream

PIXELS, CLASSES = 64, 10


class Alone:
    """The communicator of a run without MPI."""

    def allgather(self, value: Any) -> list[Any]:
        return [value]


def communicator() -> Any:
    if muster.world_size() == 1:
        return Alone()
    from mpi4py import MPI

    def stop_all(kind: Any, error: Any, trace: Any) -> None:
        """One rank's exception ends them all, instead of leaving the others waiting for it."""
        sys.__excepthook__(kind, error, trace)
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)

    sys.excepthook = stop_all
    return MPI.COMM_WORLD


def gradient(weights: Any, batch: Any) -> tuple[float, Any]:
    """Summed loss and gradient over this rank's part of a batch."""
    if not batch:
        return 0.0, np.zeros_like(weights)
    images = np.array([np.frombuffer(sample.data["img"], np.uint8) for sample in batch]) / 16.0
    labels = np.array([int(sample.data["cls"]) for sample in batch])
    images = np.hstack([images, np.ones((len(images), 1))])
    scores = np.exp(images @ weights - (images @ weights).max(axis=1, keepdims=True))
    chances = scores / scores.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(-np.log(chances[rows, labels]).sum())
    chances[rows, labels] -= 1
    return loss, images.T @ chances


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=64, help="samples in a step, over all ranks")
    parser.add_argument("--rate", type=float, default=0.3, help="learning rate")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps")
    parser.add_argument("--step-time-s", type=float, default=0.0, help="let each step last at least this long")
    return parser.parse_args()


def main() -> None:
    options = parse()
    comm = communicator()
    weights = np.zeros((PIXELS + 1, CLASSES))
    step, seen, cursor = 0, "", None

    def read(files: Any) -> tuple[Any, str, str]:
        """Called with the newest checkpoint, and with an older one if that is damaged."""
        with np.load(files.path) as saved:
            return saved["weights"], str(saved["seen"]), files.cursor

    def write(path: str) -> None:
        with open(path, "wb") as file:
            np.savez(file, weights=weights, seen=seen)

    loaded = muster.load_checkpoint(read, agree=lambda good: all(comm.allgather(good)))
    if loaded is not None:
        (weights, seen, cursor), last = loaded
        step = last.step
    if muster.rank() == 0:
        print(f"{muster.world_size()} ranks, attempt {muster.attempt()}, from step {step}", flush=True)

    loss = 0.0
    with stream(seed=options.seed, global_batch=options.batch, epochs=options.epochs, cursor=cursor) as batches:
        for batch in batches:  # this rank's part of the step's samples
            began = time.monotonic()
            step += 1
            parts = comm.allgather((*gradient(weights, batch), [sample.key for sample in batch]))
            keys = [key for part in parts for key in part[2]]
            loss = sum(part[0] for part in parts) / len(keys)
            weights = weights - options.rate * sum(part[1] for part in parts) / len(keys)
            seen = hashlib.sha256((seen + " ".join(keys)).encode()).hexdigest()
            time.sleep(max(0.0, options.step_time_s - (time.monotonic() - began)))
            muster.report(step=step, metrics={"loss": loss})
            if step % options.checkpoint_every == 0 and os.environ.get("MUSTER_CHECKPOINT_DIR"):
                muster.save_checkpoint(step, write, cursor=batches.cursor(), skipped=batches.skipped)
    if muster.rank() == 0:
        print(f"final step {step} loss {loss:.6f} samples {seen[:16]}", flush=True)


if __name__ == "__main__":
    main()
