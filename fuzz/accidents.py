"""Accidental changes by users and operators while jobs run: nodes, labels, Placements, specs and statuses."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from fuzz.training import Training
from fuzz.view import View
from fuzz.workload import JobSpec
from muster.api.names import LABEL_RACK, LABEL_ZONE
from muster.kube.errors import ApiError, NotFound
from muster.sim.nodes import SimNodes
from muster.sim.virtual.cluster import VirtualCluster

WAITS_S = 120.0
"""If its job does not run within this time, an accident does not happen."""
ACCIDENTS = 0.6
"""Share of runs with accidents."""
LAUNCHERS = ("mpi", "mpi", "mpi", "none", "torchrun")
NODE_DELETED, RELABELLED, PLACEMENT_DELETED = "node-deleted", "relabelled", "placement-deleted"
SPEC_EDITED, SUSPENDED, STATUS_EDITED = "spec-edited", "suspended", "status-edited"
KINDS = (
    NODE_DELETED,
    NODE_DELETED,
    RELABELLED,
    RELABELLED,
    PLACEMENT_DELETED,
    SPEC_EDITED,
    SPEC_EDITED,
    SUSPENDED,
    STATUS_EDITED,
    STATUS_EDITED,
)
SPECS: tuple[dict[str, Any], ...] = (
    {"replicas": 1},
    {"replicas": 2},
    {"replicas": 3},
    {"image": "another"},
    {"command": ["another"]},
    {"args": ["--more"]},
    {"launcher": "none"},
    {"launcher": "mpi"},
    {"ranksPerNode": 2},
    {"env": [{"name": "MORE", "value": "1"}]},
    {"checkpoint": {"path": "/elsewhere"}},
    {"timeLimitSeconds": 100_000},
    {"ttlSecondsAfterFinished": 20},
    {"backoffLimit": 50},
    {"priority": 1},
)
"""Changes of users in the spec of a running job. The API server refuses some; no other may harm the attempt."""
STATUSES: tuple[dict[str, Any] | None, ...] = (
    None,
    None,
    {"phase": "Pending"},
    {"phase": "Starting"},
    {"phase": "Restarting"},
    {"phase": "Stopping"},
    {"phase": "Running"},
    {"phase": None},
    {"attempt": 0},
    {"attempt": 7},
    {"attempt": 7, "ranAttempt": 7},
    {"run": None},
    {"run": None, "conditions": None},
    {"restarts": None, "faults": None},
    {"readySlots": 0, "size": 0},
    {"startTime": None, "message": "edited"},
    {"progress": None},
)
"""Changes by hand in the status of a running job; None wipes it. None of them writes an end that did not happen."""


class Accident(msgspec.Struct, frozen=True):
    """Happens to a job `after_s` seconds after it runs, `at` seconds after the start of the run or later.

    Attributes:
        kind: what happens.
        job: name of the job.
        pick: which of its nodes.
        back_s: a deleted Node object is registered again after so many seconds.
        value: the new value of a label.
        patch: what is written into a spec or status.
    """

    kind: str
    job: str
    at: float
    after_s: float
    pick: int
    back_s: float = 0.0
    value: str = ""
    patch: dict[str, Any] | None = None


def draw_ranks(rng: random.Random, jobs: Sequence[JobSpec]) -> tuple[JobSpec, ...]:
    """Draw launchers, and how much of the work ranks of each node do: node rank 0 is often longer than the others."""
    found = []
    for job in jobs:
        first = rng.choice((1.0, 1.0, 0.4))
        others = tuple(rng.choice((1.0, 0.3, 0.7)) for _ in range(4))
        shares = rng.choice(((), (first, *others), (1.0, 0.3)))
        launcher = rng.choice(LAUNCHERS)
        found.append(job if job.single else msgspec.structs.replace(job, launcher=launcher, rank_shares=shares))
    return tuple(found)


def draw_accidents(rng: random.Random, jobs: Sequence[JobSpec]) -> tuple[Accident, ...]:
    """Draw the accidents: first their kinds, then the accidents themselves."""
    gangs = [job for job in jobs if not job.single]
    if rng.random() >= ACCIDENTS or not gangs:
        return ()
    kinds = rng.sample(KINDS, rng.randint(1, 3))
    found = []
    for _ in range(rng.choice((1, 2, 4))):
        job = rng.choice(gangs)
        kind = rng.choice(kinds)
        found.append(
            Accident(
                kind=kind,
                job=job.name,
                at=job.arrives_s,
                after_s=rng.uniform(0, min(job.runs_s, 60.0)),
                pick=rng.randrange(64),
                back_s=rng.choice((1.0, rng.uniform(1, 30), rng.uniform(30, 90))),
                value=rng.choice(("", "zone-0", "zone-2", "zone-9")),
                patch=rng.choice(STATUSES if kind == STATUS_EDITED else SPECS),
            )
        )
    return tuple(found)


class Accidents:
    """Carries out accidents.

    Args:
        cluster: where.
        nodes: the machines, which keep running.
        view: what the API server holds.
        training: the jobs.
        is_spared: returns whether a node is left alone, because it has other faults.
        register: creates the Node object of a running machine again.
    """

    def __init__(
        self,
        cluster: VirtualCluster,
        nodes: SimNodes,
        view: View,
        training: Training,
        is_spared: Callable[[str], bool],
        register: Callable[[str], Awaitable[None]],
    ) -> None:
        self._cluster, self._nodes, self._view, self._training = cluster, nodes, view, training
        self._is_spared, self._register = is_spared, register
        self._away: set[str] = set()

    async def happens(self, accident: Accident) -> None:
        """Wait for its moment; returns when it is over."""
        await asyncio.sleep(accident.at)
        until = self._cluster.loop.now + WAITS_S
        while not self._training.runs(accident.job):
            if self._cluster.loop.now >= until:
                return
            await asyncio.sleep(1.0)
        await asyncio.sleep(accident.after_s)
        if accident.kind == NODE_DELETED:
            await self._delete_node(accident)
        elif accident.kind == SUSPENDED:
            await self._suspend(accident)
        elif accident.kind == RELABELLED:
            self._relabel(accident)
        elif accident.kind == PLACEMENT_DELETED:
            self._delete_placement(accident)
        else:
            self._edit(accident)

    def _node_of(self, accident: Accident) -> str:
        """Returns one of the nodes that the job runs on; "" if all of them are spared."""
        members = [pod for pod in self._view.pods.values() if pod.gang.partition("/")[0] == accident.job]
        names = {pod.node for pod in members if pod.live and pod.node}
        found = sorted(name for name in names - self._away if self._is_up(name) and not self._is_spared(name))
        return found[accident.pick % len(found)] if found else ""

    def _is_up(self, name: str) -> bool:
        machine = self._nodes.nodes.get(name)
        return machine is not None and machine.alive and self._view.node(name) is not None

    async def _delete_node(self, accident: Accident) -> None:
        name = self._node_of(accident)
        if not name:
            return
        self._away.add(name)
        self._cluster.call("DELETE", f"/api/v1/nodes/{name}")
        await asyncio.sleep(accident.back_s)
        with contextlib.suppress(ApiError):
            await self._register(name)
        self._away.discard(name)

    def _relabel(self, accident: Accident) -> None:
        name = self._node_of(accident)
        if name:
            label = LABEL_RACK if accident.pick % 3 == 0 else LABEL_ZONE
            labels: dict[str, Any] = {label: accident.value or None}
            self._cluster.call("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}})

    def _delete_placement(self, accident: Accident) -> None:
        spec = self._training.specs[accident.job]
        path = f"/apis/muster.dev/v1alpha1/namespaces/{spec.namespace}/placements/{spec.name}"
        with contextlib.suppress(NotFound), self._view.by_hand():
            self._cluster.call("DELETE", path)

    def _edit(self, accident: Accident) -> None:
        """Write into the spec or the status of a job that is not over. The API server may refuse it."""
        if self._training.is_over(accident.job):
            return
        path = self._training.specs[accident.job].path
        if accident.kind == SPEC_EDITED:
            with contextlib.suppress(ApiError):
                self._cluster.call("PATCH", path, {"spec": accident.patch})
            return
        with contextlib.suppress(ApiError), self._view.by_hand():
            self._view.edited.add(accident.job)
            self._cluster.call("PATCH", f"{path}/status", {"status": accident.patch})

    async def _suspend(self, accident: Accident) -> None:
        if self._training.is_over(accident.job):
            return
        path = self._training.specs[accident.job].path
        self._cluster.call("PATCH", path, {"spec": {"suspend": True}})
        await asyncio.sleep(min(accident.back_s, 30.0))
        with contextlib.suppress(NotFound):
            self._cluster.call("PATCH", path, {"spec": {"suspend": None}})
