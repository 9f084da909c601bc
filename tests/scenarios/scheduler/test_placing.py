"""Gangs are placed whole, in order, and say why they wait."""

from __future__ import annotations

from tests.scenarios.scheduler.conftest import Cluster, until


async def test_a_gang_of_8_on_10_nodes_is_bound(cluster: Cluster) -> None:
    await cluster.add_nodes(10)
    await cluster.add_gang("train", 8)
    cluster.schedule()
    await until("bound", lambda: cluster.is_bound("train", 8))
    bound = await cluster.bound("train")
    placement = await cluster.placement("train")
    assert placement is not None
    assert len(set(bound.values())) == 8
    assert {f"train-{slot.slot}-0": slot.node for slot in placement.spec.slots} == bound
