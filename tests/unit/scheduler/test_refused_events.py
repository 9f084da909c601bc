"""What dry runs of evictions said is known elsewhere than in the leader too."""

from __future__ import annotations

import asyncio

from muster.scheduler.actions.evictor import SPARED_S
from muster.scheduler.explain.loading import load_state
from muster.scheduler.explain.why_waiting import explain
from muster.scheduler.reasons import NodeWhy
from muster.sim.virtual.network import Calm
from tests.support.virtualreplicas import NAMESPACE, World


class NobodyIsEvicted(Calm):
    """As with a policy that refuses evictions."""

    def denied(self, method: str, path: str, body: bytes) -> int:
        return 403 if path.endswith("/eviction") else 0


def test_who_explains_from_elsewhere_sees_which_evictions_were_refused_and_for_how_long() -> None:
    world = World(2, fates=NobodyIsEvicted)
    world.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "high"}, "value": 10})

    async def seen(now: float) -> dict[NodeWhy, str]:
        snapshot = (await load_state(world.cluster.client("elsewhere"))).snapshot()
        gang = snapshot.find(NAMESPACE, "high")
        assert gang is not None
        return {count.why: count.detail for count in explain(snapshot, gang, now=now).nodes}

    async def story() -> None:
        await asyncio.sleep(20.0)
        world.add_gang("low", 2)
        await asyncio.sleep(10.0)
        world.add_gang("high", 1, priorityClassName="high")
        await asyncio.sleep(10.0)
        now = world.loop.now
        refused = await seen(now)
        assert refused[NodeWhy.EVICTION_REFUSED].startswith("default/low: pod low-")
        assert NodeWhy.EVICTION_REFUSED not in await seen(now + SPARED_S)

    world.run(story)
