"""What dry runs of evictions said is known elsewhere than in the leader too."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from muster.kube.objects.core import Event
from muster.kube.objects.meta import ObjectMeta
from muster.scheduler.actions.evictor import SPARED_S
from muster.scheduler.explain import refused_evictions
from muster.scheduler.explain.loading import load_state
from muster.scheduler.explain.refused_evictions import EVICTION_REFUSED
from muster.scheduler.explain.why_waiting import explain
from muster.scheduler.reasons import NodeWhy
from muster.sim.virtual.network import Calm
from tests.support.virtualreplicas import NAMESPACE, World


class EvictionsRefused(Calm):
    """As with a policy that refuses evictions."""

    def denied(self, method: str, path: str, body: bytes) -> int:
        return 403 if path.endswith("/eviction") else 0


def test_standby_explains_which_evictions_were_refused_and_for_how_long() -> None:
    world = World(2, fates=EvictionsRefused)
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


def refusal(message: str, annotations: dict[str, str]) -> tuple[float, str]:
    event = Event(
        metadata=ObjectMeta(annotations=annotations),
        reason=EVICTION_REFUSED,
        message=message,
        last_timestamp=datetime.fromtimestamp(1000.0, UTC),
    )
    return refused_evictions._refusal(event)


def test_refusal_is_read_from_annotations_not_from_the_message() -> None:
    facts = refused_evictions.refusal_facts("pod low-0: no", 1005.0)
    assert refusal("a cannot be evicted for it: pod x: y", dict(facts)) == (1005.0, "pod low-0: no")


def test_refusal_of_an_earlier_version_lasts_the_usual_time_and_is_quoted() -> None:
    said = "default/low cannot be evicted for it: pod low-0: no"
    assert refusal(said, {}) == (1000.0 + SPARED_S, said)
