"""Loads the cluster once, for commands that do not watch it: `muster explain`, `muster simulate`."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from muster.api.names import (
    ANNOTATION_GANG_SIZE,
    ANNOTATION_GANG_UID,
    ANNOTATION_TESTED_WITHIN,
    ANNOTATION_WHOLE_NODE,
    LABEL_GANG,
    LABEL_SLOT,
    LABEL_TEAM,
    SCHEDULER_NAME,
)
from muster.api.placement import Placement
from muster.api.preflight import Preflight
from muster.api.training_job import TrainingJob
from muster.kube.client import Client
from muster.kube.clock import steady_time
from muster.kube.errors import Forbidden, NotFound
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.scheduler.actions.claim_lookups import TIMEOUT_S, look_up_claim
from muster.scheduler.explain.refused_evictions import list_refusals
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.gangs.priority import job_facts
from muster.scheduler.informers.budgets import list_budgets
from muster.scheduler.informers.cluster import list_surroundings
from muster.scheduler.informers.owners import list_wanted
from muster.scheduler.snapshot import Snapshot
from muster.scheduler.state import ClusterState

SUPPOSED_UID = "supposed"


async def load_state(client: Client, team_key: str = LABEL_TEAM, trusting: str | None = None) -> ClusterState:
    """List all objects that scheduling depends on, in all namespaces.

    Args:
        client: the API server.
        team_key: label key for the team of nodes and pods.
        trusting: Muster's own namespace if nodes with GPUs need tests; None if they need none.

    Raises:
        ApiError: a required kind could not be listed.
    """
    nodes, pods, placements, jobs = await asyncio.gather(
        client.list_all(Node), client.list_all(Pod), client.list_all(Placement), client.list_all(TrainingJob)
    )
    state, now = ClusterState(team_key=team_key, trusting=trusting), steady_time()
    if trusting is not None:
        for record in (await client.list_all(Preflight)).items:
            state.set_tested(record.name, record)
    await list_surroundings(client, state, now)
    await list_budgets(client, state)
    for node in nodes.items:
        state.set_node(node)
    for job in jobs.items:
        state.usage.add_ended(job, now)
        state.jobs.set(job.uid, job_facts(job))
    state.jobs.synced()
    for placement in placements.items:
        state.set_placement(placement, now)
    for pod in pods.items:
        state.set_pod(pod, now)
    await list_wanted(client, state, now)
    await list_refusals(client, state)
    for claim in state.claims_wanted():
        with contextlib.suppress(NotFound, Forbidden):
            await look_up_claim(client, state, claim, clock=steady_time, timeout_s=TIMEOUT_S)
    return state


async def load_snapshot(client: Client) -> Snapshot:
    """Return the snapshot that decide uses. Raises ApiError."""
    return (await load_state(client)).snapshot()


def suppose(state: ClusterState, pod: Pod, size: int, *, now: float) -> Gang:
    """Add a hypothetical gang of `size` pods like `pod`, to explain a job before it is submitted.

    Take a snapshot after this; the gang has the pod's namespace and name.
    """
    said = pod.metadata.annotations
    wish: dict[str, str] = {key: said[key] for key in (ANNOTATION_TESTED_WITHIN, ANNOTATION_WHOLE_NODE) if key in said}
    for slot in range(size):
        meta = ObjectMeta(
            name=f"{pod.name}-{slot}",
            namespace=pod.namespace or "default",
            uid=f"{SUPPOSED_UID}-{pod.name}-{slot}",
            labels={**pod.metadata.labels, LABEL_GANG: pod.name, LABEL_SLOT: str(slot)},
            annotations={ANNOTATION_GANG_SIZE: str(size), ANNOTATION_GANG_UID: SUPPOSED_UID, **wish},
        )
        spec = msgspec.structs.replace(pod.spec, scheduler_name=SCHEDULER_NAME, node_name="")
        state.set_pod(Pod(metadata=meta, spec=spec), now)
    key = f"{pod.namespace or 'default'}/{pod.name}/{SUPPOSED_UID}"
    gang = state.gangs[key]
    gang.arrival = now
    state.snapshot()
    return gang
