"""Generates jobs from published statistics: fits a model with few parameters, and samples from it.

- GPUs: half of the jobs have one, which is the published median. The others have a power of two, up to the published
  maximum. Each power of two is `ratio` times as frequent as the one before. The ratio is chosen so that the mean is
  the published mean.
- Run time: log-normal, cut at the published maximum. Its median is proportional to a power of the number of GPUs. The
  three parameters are chosen so that median and mean of the run time and the mean GPU time are the published ones.
- Arrivals: a Poisson process with a given number of jobs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import msgspec

from muster.sim.replay.job import Workload, job_of_gpus
from muster.sim.replay.published import CLUSTERS, Statistics

_STEPS = 32
"""Number of bisection steps: more exact than the published numbers."""
OFFERED_LOAD = 0.8
"""Share of the cluster's GPU time that the jobs request, if the number of jobs is not given."""


class Model(msgspec.Struct, frozen=True):
    """The fitted model: shares of jobs by GPUs, and ln(run time) ~ N(`location` + `growth` * ln(GPUs), `spread`)."""

    gpus: tuple[int, ...]
    shares: tuple[float, ...]
    location: float
    growth: float
    spread: float
    max_run_s: float

    def mean(self, power: float) -> float:
        """Return the mean of GPUs ** power times the run time."""
        return sum(
            share
            * math.pow(gpus, power)
            * _capped_mean(self.location + self.growth * math.log(gpus), self.spread, self.max_run_s)
            for gpus, share in zip(self.gpus, self.shares, strict=True)
        )

    def only(self, least: int, most: int) -> Model:
        """Return the model restricted to jobs with `least` to `most` GPUs. Raises ValueError if there are none."""
        kept = [(g, share) for g, share in zip(self.gpus, self.shares, strict=True) if least <= g <= most]
        if not kept:
            raise ValueError(
                f"no job of this model has {least} to {most} GPUs; it has {self.gpus[0]} to {self.gpus[-1]}"
            )
        total = sum(share for _, share in kept)
        return msgspec.structs.replace(
            self, gpus=tuple(g for g, _ in kept), shares=tuple(share / total for _, share in kept)
        )


def fit(statistics: Statistics) -> Model:
    """Return the model whose parameters fit the statistics."""
    gpus, shares = _sizes(statistics)
    logs = [math.log(each) for each in gpus]

    def model(growth: float, spread: float) -> Model:
        def above_half(location: float) -> float:
            target = math.log(statistics.median_run_s)
            return 0.5 - sum(
                share * _normal((target - location - growth * log) / spread)
                for share, log in zip(shares, logs, strict=True)
            )

        return Model(gpus, shares, _root(above_half, -20.0, 20.0), growth, spread, statistics.max_run_s)

    def with_mean(growth: float) -> Model:
        spread = _root(lambda spread: model(growth, spread).mean(0.0) - statistics.mean_run_s, 0.05, 6.0)
        return model(growth, spread)

    growth = _root(lambda growth: with_mean(growth).mean(1.0) - statistics.mean_gpu_s, 0.0, 2.0)
    return with_mean(growth)


def made_up(
    like: str,
    *,
    nodes: int,
    gpus: int,
    days: float,
    jobs: int,
    least_gpus: int,
    seed: int,
    load: float = OFFERED_LOAD,
) -> Workload:
    """Return `jobs` jobs (0: enough to request `load` of the GPU time) that arrive within `days`.

    Raises ValueError if no job of the model has at least `least_gpus` and fits into the cluster.
    """
    model = fit(CLUSTERS[like]).only(max(least_gpus, 1), nodes * gpus)
    if not jobs:
        jobs = max(1, round(load * nodes * gpus * days * 86400 / model.mean(1.0)))
    rng = random.Random(f"arrivals {seed}")
    times = sorted(rng.random() * days * 86400 for _ in range(jobs))
    sizes = rng.choices(model.gpus, model.shares, k=jobs)
    return Workload(
        f"model of {like}",
        [
            job_of_gpus(f"job-{number:06}", submit_s, _run_s(rng, model, size), size, gpus)
            for number, (submit_s, size) in enumerate(zip(times, sizes, strict=True))
        ],
    )


def _run_s(rng: random.Random, model: Model, gpus: int) -> float:
    return min(math.exp(rng.gauss(model.location + model.growth * math.log(gpus), model.spread)), model.max_run_s)


def _sizes(statistics: Statistics) -> tuple[tuple[int, ...], tuple[float, ...]]:
    gpus = tuple(1 << power for power in range(statistics.max_gpus.bit_length()))

    def shares(ratio: float) -> Sequence[float]:
        weights = [ratio**power for power in range(len(gpus) - 1)]
        return [0.5, *(0.5 * weight / sum(weights) for weight in weights)]

    def excess(ratio: float) -> float:
        return sum(g * share for g, share in zip(gpus, shares(ratio), strict=True)) - statistics.mean_gpus

    return gpus, tuple(shares(_root(excess, 1e-6, 4.0)))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Finds the root of an increasing function."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _normal(value: float) -> float:
    return 0.5 * math.erfc(-value / math.sqrt(2))


def _capped_mean(location: float, spread: float, limit: float) -> float:
    """Return the mean of min(X, limit) for log-normal X."""
    at = (math.log(limit) - location) / spread
    return math.exp(location + spread * spread / 2) * _normal(at - spread) + limit * _normal(-at)
