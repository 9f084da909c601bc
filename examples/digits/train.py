"""Data-parallel training with MPI: a two-layer network on scikit-learn's handwritten digits (real data, 1,797 images).

Any number of ranks, `python train.py` alone too. Every step's batch follows from the seed and the step, and gradients
are summed in rank order, so a run that was interrupted and resumed ends where an uninterrupted one does.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import muster

Arrays = dict[str, "np.ndarray[Any, np.dtype[np.float64]]"]


class Alone:
    """The communicator of a run without MPI."""

    def allgather(self, value: Any) -> list[Any]:
        return [value]

    def bcast(self, value: Any) -> Any:
        return value


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


def load_data() -> tuple[Any, Any, Any, Any]:
    """As sklearn.datasets.load_digits reads them; to import that would cost each rank two seconds at each start."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        sys.exit("the images are scikit-learn's: pip install scikit-learn")
    rows = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    images, labels = rows[:, :-1] / 16.0, rows[:, -1].astype(int)
    return images[:1500], labels[:1500], images[1500:], labels[1500:]


def new_model(seed: int, hidden: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        "w1": rng.normal(0, np.sqrt(2 / 64), (64, hidden)),
        "b1": np.zeros(hidden),
        "w2": rng.normal(0, np.sqrt(2 / hidden), (hidden, 10)),
        "b2": np.zeros(10),
    }


def forward(model: Arrays, images: Any) -> tuple[Any, Any]:
    hidden = np.maximum(images @ model["w1"] + model["b1"], 0)
    scores = hidden @ model["w2"] + model["b2"]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, scores / scores.sum(axis=1, keepdims=True)


def gradients(model: Arrays, images: Any, labels: Any) -> tuple[float, Arrays]:
    """Summed loss and gradients over these images."""
    hidden, chances = forward(model, images)
    rows = np.arange(len(labels))
    loss = float(-np.log(chances[rows, labels]).sum())
    chances[rows, labels] -= 1
    back = (chances @ model["w2"].T) * (hidden > 0)
    return loss, {
        "w1": images.T @ back,
        "b1": back.sum(axis=0),
        "w2": hidden.T @ chances,
        "b2": chances.sum(axis=0),
    }


def evaluate(model: Arrays, images: Any, labels: Any) -> tuple[float, float]:
    """(mean loss, accuracy)."""
    _, chances = forward(model, images)
    loss = float(-np.log(chances[np.arange(len(labels)), labels]).mean())
    return loss, float((chances.argmax(axis=1) == labels).mean())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=128, help="images in a step, over all ranks")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps; 0 for never")
    parser.add_argument("--step-time-s", type=float, default=0.0, help="let each step last at least this long")
    parser.add_argument("--log-every", type=int, default=10, help="steps")
    return parser.parse_args()


def main() -> None:
    options = parse()
    comm, rank, size = communicator(), muster.rank(), muster.world_size()
    images, labels, test_images, test_labels = load_data()
    model = new_model(options.seed, options.hidden)
    velocity: Arrays = {name: np.zeros_like(values) for name, values in model.items()}
    step = 0

    def read(files: Any) -> tuple[Arrays, Arrays]:
        """Called with the newest checkpoint; if that is damaged on any rank, with an older one on all of them."""
        with np.load(files.path) as saved:
            return (
                {name: saved[f"model_{name}"] for name in model},
                {name: saved[f"velocity_{name}"] for name in velocity},
            )

    loaded = muster.load_checkpoint(read, agree=lambda good: all(comm.allgather(good)))
    if loaded is not None:
        (model, velocity), last = loaded
        step = last.step
    if rank == 0:
        print(f"{size} ranks, attempt {muster.attempt()}, from step {step}", flush=True)

    def write(path: str) -> None:
        arrays: dict[str, Any] = {f"model_{name}": values for name, values in model.items()}
        arrays.update({f"velocity_{name}": values for name, values in velocity.items()})
        with open(path, "wb") as file:
            np.savez(file, **arrays)

    while step < options.steps:
        began = time.monotonic()
        step += 1
        batch = np.random.default_rng((options.seed, step)).choice(len(images), options.batch, replace=False)
        mine = np.array_split(batch, size)[rank]
        parts = comm.allgather(gradients(model, images[mine], labels[mine]))
        loss = sum(part[0] for part in parts) / options.batch  # in rank order: the same sum every time
        for name in model:
            gradient = sum(part[1][name] for part in parts) / options.batch
            velocity[name] = options.momentum * velocity[name] - options.rate * gradient
            model[name] = model[name] + velocity[name]
        time.sleep(max(0.0, options.step_time_s - (time.monotonic() - began)))
        if rank == 0:
            muster.report(step=step, total_steps=options.steps, metrics={"loss": loss})
            if step % options.log_every == 0:
                print(f"step {step} loss {loss:.6f}", flush=True)
        due = options.checkpoint_every and step % options.checkpoint_every == 0
        if os.environ.get("MUSTER_CHECKPOINT_DIR") and comm.bcast(bool(due or muster.should_checkpoint())):
            muster.save_checkpoint(step, write)

    if rank == 0:
        loss, accuracy = evaluate(model, test_images, test_labels)
        muster.report(step=step, total_steps=options.steps, metrics={"loss": loss, "accuracy": accuracy})
        print(f"final step {step} loss {loss:.15g} accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
