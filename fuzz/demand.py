"""The demand on the cluster in a run."""

from __future__ import annotations

import random

from fuzz.workload import JobSpec

MIXED, QUEUE, HANDOVER = "mixed", "queue", "handover"
NODE_FAULTS_MAX = 2
POOL_TAINT = "muster.dev/pool"


def demand(rng: random.Random, style: str, nodes: int, tainted: int) -> tuple[JobSpec, ...]:
    """Draw the jobs of a run.

    Args:
        rng: source of the choice.
        style: MIXED: gangs and pods of all kinds; QUEUE: small jobs come without end while a large one waits;
            HANDOVER: pods of a whole node come all the time, so that at every moment some are being bound.
        nodes: in the cluster.
        tainted: of these, with the pool's taint.
    """
    if style == QUEUE:
        return tuple(_queue(rng, nodes, tainted))
    return tuple(_stream(rng) if style == HANDOVER else _mixed(rng, nodes, tainted))


def _queue(rng: random.Random, nodes: int, tainted: int) -> list[JobSpec]:
    open_nodes = nodes - tainted
    large = JobSpec("large", max(1, open_nodes - NODE_FAULTS_MAX), 8, arrives_s=15.0, runs_s=10.0)
    small = []
    for number in range(3 * open_nodes):
        arrives_s = 0.0 if number < open_nodes else rng.uniform(0, 60)
        small.append(JobSpec(f"small-{number}", 1, rng.choice((4, 8)), arrives_s, runs_s=rng.uniform(15, 40)))
    return [large, *small]


def _stream(rng: random.Random) -> list[JobSpec]:
    specs = []
    for number in range(60):
        priority_class, single = rng.choice(("", "high")), rng.random() < 0.85
        specs.append(
            JobSpec(
                f"job-{number}",
                1 if single else 2,
                8,
                arrives_s=rng.uniform(0, 170),
                runs_s=rng.uniform(4, 12),
                priority_class=priority_class,
                grace_s=0,
                single=single,
            )
        )
    return specs


def _mixed(rng: random.Random, nodes: int, tainted: int) -> list[JobSpec]:
    specs = []
    endless = rng.choice((0, 0, 1, nodes // 4))
    largest = max(1, nodes - tainted - endless - NODE_FAULTS_MAX)
    busy = rng.random() < 0.5
    for number in range(rng.randint(3, 9)):
        single = rng.random() < 0.2
        runs_s = rng.uniform(5, 40)
        restarts = sorted(rng.uniform(0, runs_s) for _ in range(rng.choice((0, 0, 1, 2))))
        suspended_at = rng.uniform(5, 80)
        specs.append(
            JobSpec(
                name=f"job-{number}",
                size=1 if single else rng.randint(1, largest) if busy else rng.randint(1, max(1, largest // 2)),
                gpus=rng.choice((2, 4)) if single else rng.choice((8, 8, 8, 4)),
                arrives_s=rng.choice((0.0, rng.uniform(0, 20 if busy else 60))),
                runs_s=runs_s,
                priority_class=rng.choice(("", "", "high")),
                tolerates=POOL_TAINT if tainted and rng.random() < 0.5 else "",
                grace_s=rng.choice((0, 2, 10)),
                restarts=() if single else tuple(restarts),
                suspended=(suspended_at, suspended_at + rng.uniform(1, 30)) if rng.random() < 0.15 else None,
                single=single,
            )
        )
    if endless:
        specs.append(JobSpec("runs-on", endless, 8, arrives_s=rng.uniform(0, 60), runs_s=float("inf"), endless=True))
    if rng.random() < 0.3:
        specs.append(JobSpec("too-large", nodes + 1, 8, rng.uniform(0, 60), runs_s=1.0, endless=True))
    return specs
