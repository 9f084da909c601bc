"""Plain pods on reserved nodes: what is evicted for the gang in front, what may stay, and what changes in front."""

from __future__ import annotations

from typing import Any

from muster.api.names import ANNOTATION_BACKFILLED, ANNOTATION_RESTARTABLE
from muster.kube.objects.pod import Pod
from muster.kube.objects.policy import PodDisruptionBudget
from tests.scenarios.backfill.gangs import add_restartable, end, gone, record, uids, waits, wide_waits
from tests.scenarios.scheduler.conftest import Cluster
from tests.scenarios.scheduler.test_eviction import alive, has_event, run, set_budget
from tests.support.anyserver import BY_SCHEDULER
from tests.support.waiting import until

NEVER_RUN_S = 60
"""Less than the limit of the gang in front would allow."""


async def add_single(cluster: Cluster, name: str) -> None:
    """A pod of its own that declares that it may be evicted and recreated."""
    pod = cluster.pod("none", 0, 1)
    annotations = {ANNOTATION_RESTARTABLE: "true"}
    pod["metadata"] = {"name": name, "namespace": cluster.namespace, "labels": {"app": "x"}, "annotations": annotations}
    await cluster.client.create(pod)


async def test_single_pods_that_declare_it_are_backfilled_and_evicted_only_as_their_budget_admits(
    cluster: Cluster,
) -> None:
    await wide_waits(cluster)
    for name in ("single-0", "single-1"):
        await add_single(cluster, name)
    await run(cluster, "single-", 2)
    for pod in await cluster.pods():
        if pod.name.startswith("single-"):
            assert pod.metadata.annotations[ANNOTATION_BACKFILLED] == f"{cluster.namespace}/wide"
    await set_budget(cluster, "budget", {"app": "x"}, stay=1, allowed=1)
    await end(cluster, "long")
    await cluster.add_gang("witness", 1)
    await waits(cluster, "witness", "BehindInQueue")  # a plan was made after the end of the first gang
    assert await alive(cluster, "single-") == {"single-0", "single-1"}, "evicting only one would not make enough room"
    patch = {"spec": {"minAvailable": 0}}
    await cluster.client.patch(PodDisruptionBudget, "budget", patch, namespace=cluster.namespace)
    await cluster.until_bound("wide", 3)
    await gone(cluster, "single-0", "single-1")
    assert await cluster.bound("witness") == {}


@BY_SCHEDULER
async def test_pods_whose_limit_ends_in_time_run_on_reserved_nodes_and_are_never_asked(cluster: Cluster) -> None:
    await cluster.add_nodes(3)
    cluster.schedule()
    for gang, size, limit_s in (("long", 1, 3600), ("wide", 3, None), ("endless", 1, None), ("short", 1, NEVER_RUN_S)):
        spec: dict[str, Any] = {"activeDeadlineSeconds": limit_s} if limit_s else {}
        await cluster.add_gang(gang, size, spec=spec)
        if limit_s:
            await cluster.until_bound(gang, size)
        else:
            await waits(cluster, gang, "NotEnoughNodes" if gang == "wide" else "BehindInQueue")
    assert await record(cluster, "short") == ""
    before = await uids(cluster, "short")
    await end(cluster, "long")
    await cluster.add_gang("witness", 1)
    await waits(cluster, "witness", "BehindInQueue")
    assert await uids(cluster, "short") == before
    assert await cluster.bound("endless") == {}
    await end(cluster, "short")
    await cluster.until_bound("wide", 3)


async def test_a_restartable_gang_is_evicted_whole_and_runs_again_when_there_is_room(cluster: Cluster) -> None:
    await wide_waits(cluster)
    await add_restartable(cluster, "small", 2)
    await cluster.until_bound("small", 2)
    assert await record(cluster, "small") == "wide"
    await end(cluster, "long")
    await cluster.until_bound("wide", 3)
    assert await uids(cluster, "small") == set()
    why = f"{cluster.namespace}/wide, which is before it in the queue"
    await until("an Event says for what", lambda: has_event(cluster, "Preempting", why))
    await add_restartable(cluster, "small", 2, attempt=1)
    await waits(cluster, "small", "NotEnoughNodes")
    await end(cluster, "wide")
    await cluster.until_bound("small", 2)
    assert await record(cluster, "small") == ""


async def test_the_gang_in_front_is_deleted_and_the_backfilled_one_keeps_its_nodes(cluster: Cluster) -> None:
    await wide_waits(cluster)
    await add_restartable(cluster, "small", 2)
    await cluster.until_bound("small", 2)
    before = await uids(cluster, "small")
    await cluster.kill("wide")
    await end(cluster, "long")

    async def corrected() -> bool:
        return not await record(cluster, "small")

    await until("the record is gone", corrected)
    await cluster.add_gang("later", 3)
    await waits(cluster, "later", "NotEnoughNodes")
    assert await uids(cluster, "small") == before
    placement = await cluster.placement("small")
    assert placement is not None
    assert placement.status.phase == "Bound"


@BY_SCHEDULER
async def test_a_node_of_the_reservation_breaks_and_no_gang_is_asked_until_it_is_back(cluster: Cluster) -> None:
    await wide_waits(cluster)
    await add_restartable(cluster, "small", 1)
    await cluster.until_bound("small", 1)
    before = await uids(cluster, "small")
    used = {*(await cluster.bound("long")).values(), *(await cluster.bound("small")).values()}
    (broken,) = set(cluster.nodes) - used
    await cluster.set_ready(broken, False)
    await waits(cluster, "wide", "MoreThanTheCluster")
    await end(cluster, "long")
    await cluster.add_gang("witness", 1)
    await cluster.until_bound("witness", 1)  # the gang in front cannot start, so it reserves nothing
    assert await uids(cluster, "small") == before
    await end(cluster, "witness")
    await cluster.set_ready(broken, True)
    await cluster.until_bound("wide", 3)
    assert await cluster.client.list(Pod, cluster.namespace, label_selector="muster.dev/gang=small")
    assert await uids(cluster, "small") == set()
