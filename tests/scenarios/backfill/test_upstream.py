"""What users of queues and gang schedulers ran into when a large job waits; each test has the upstream number."""

from __future__ import annotations

from muster.scheduler.plan import Settings
from tests.scenarios.backfill.gangs import HASTY, add_restartable, end, record, waits, wide_waits
from tests.scenarios.scheduler.conftest import Cluster
from tests.support.priorityclasses import make_priority_class

PATIENT = "muster-test-patient"
"""A class of high priority that preempts nothing."""


async def test_order_blocks_no_other_shape_and_no_gang_starves_8309(cluster: Cluster) -> None:
    """Kueue: StrictFIFO blocks jobs of other flavors; with BestEffortFIFO gangs starve. Ours: neither."""
    await wide_waits(cluster)
    await cluster.add_nodes(1, gpus=1, labels={"shape": "small"})
    await cluster.add_gang("other", 1, gpus=1, spec={"nodeSelector": {"shape": "small"}})
    await cluster.until_bound("other", 1)
    for number in range(2):
        await add_restartable(cluster, f"fast-{number}", 1)
        await cluster.until_bound(f"fast-{number}", 1)
    for number in range(2, 5):  # they never stop coming
        await add_restartable(cluster, f"fast-{number}", 1)
        await waits(cluster, f"fast-{number}", "BehindInQueue")
    await end(cluster, "long")
    await cluster.until_bound("wide", 3)
    assert [len(await cluster.bound(f"fast-{number}")) for number in range(5)] == [0] * 5


async def test_a_large_job_of_high_priority_is_not_passed_by_small_ones_748(cluster: Cluster) -> None:
    """Volcano: what becomes free goes to small jobs of low priority for ever. Ours: it is kept for the large one."""
    await make_priority_class(cluster.client, PATIENT, 1000, preemption_policy="Never")
    await cluster.add_nodes(3)
    cluster.schedule(settings=HASTY)
    for number in range(3):
        await cluster.add_gang(f"small-{number}", 1)
        await cluster.until_bound(f"small-{number}", 1)
    await cluster.add_gang("large", 3, spec={"priorityClassName": PATIENT})
    await waits(cluster, "large", "NotEnoughNodes")
    for number in range(3):
        await end(cluster, f"small-{number}")
        if number < 2:
            await cluster.add_gang(f"late-{number}", 1)
            await waits(cluster, f"late-{number}", "BehindInQueue")
    await cluster.until_bound("large", 3)
    assert [len(await cluster.bound(f"late-{number}")) for number in range(2)] == [0, 0]


async def test_nodes_are_reserved_for_a_big_job_and_used_until_it_starts_947(cluster: Cluster) -> None:
    """Volcano: no reservation, so a big job among equal ones starves. Ours: one, and its nodes are not idle."""
    await wide_waits(cluster)
    await cluster.add_gang("stiff", 1)
    await waits(cluster, "stiff", "BehindInQueue")
    await add_restartable(cluster, "small", 2)
    await cluster.until_bound("small", 2)
    assert await record(cluster, "small") == "wide"
    await end(cluster, "long")
    await cluster.until_bound("wide", 3)
    assert await cluster.bound("stiff") == {}
    assert await cluster.bound("small") == {}


async def test_a_job_that_cannot_start_blocks_none_that_can_5330(cluster: Cluster) -> None:
    """Volcano: GPUs are idle behind a job that does not fit. Ours: impossible ones reserve nothing, others lend."""
    await cluster.add_nodes(3)
    cluster.schedule(settings=HASTY)
    await cluster.add_gang("impossible", 5)
    await waits(cluster, "impossible", "MoreThanTheCluster")
    await cluster.add_gang("one", 1)
    await cluster.until_bound("one", 1)
    await cluster.add_gang("all", 3)
    await waits(cluster, "all", "NotEnoughNodes")
    await add_restartable(cluster, "two", 2)
    await cluster.until_bound("two", 2)
    used = {node for gang in ("one", "two") for node in (await cluster.bound(gang)).values()}
    assert used == set(cluster.nodes), "all are in use"


async def test_the_policy_strict_keeps_the_order_of_the_queue_4690(cluster: Cluster) -> None:
    """Volcano: strict FIFO is not possible. Ours: `strict` lets nothing pass, however cheap it is to stop."""
    await cluster.add_nodes(3)
    cluster.schedule(settings=Settings(policy="strict"))
    await cluster.add_gang("long", 1, spec={"activeDeadlineSeconds": 3600})
    await cluster.until_bound("long", 1)
    await cluster.add_gang("wide", 3)
    await waits(cluster, "wide", "NotEnoughNodes")
    await add_restartable(cluster, "small", 1)
    await waits(cluster, "small", "BehindInQueue")
    await cluster.add_gang("short", 1, spec={"activeDeadlineSeconds": 60})
    await waits(cluster, "short", "BehindInQueue")
    await end(cluster, "long")
    await cluster.until_bound("wide", 3)
    assert await cluster.bound("small") == {}
    await end(cluster, "wide")
    for gang in ("small", "short"):
        await cluster.until_bound(gang, 1)
