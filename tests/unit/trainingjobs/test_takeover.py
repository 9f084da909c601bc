"""A leader that takes over while jobs wait, in virtual time."""

from __future__ import annotations

import asyncio

from tests.support.virtualreplicas import JOBS, World

LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/muster-controller"


def test_a_new_leader_never_writes_what_stands_already() -> None:
    world = World(3, replicas=2)

    def leader() -> int:
        holder = world.call("GET", LEASE)["spec"]["holderIdentity"]
        return int(holder.removeprefix("controller-").partition(".")[0])

    async def story() -> None:
        for name, replicas in (("first", 2), ("large", 3), ("behind", 2)):
            world.add_job(name, replicas)
            await asyncio.sleep(40.0)
        reasons = {name: world.condition(name, "Admitted")["reason"] for name in ("large", "behind")}
        assert reasons == {"large": "NotEnoughNodes", "behind": "BehindInQueue"}
        assert world.job("large")["status"]["message"].endswith("[NotEnoughNodes]")
        first = leader()
        world.writes.clear()
        world.replicas[first].kill()
        await asyncio.sleep(90.0)
        assert leader() != first
        assert world.writes == []
        for name in ("first", "large"):
            world.call("DELETE", f"{JOBS}/{name}")
        await asyncio.sleep(30.0)
        assert world.condition("behind", "Admitted")["status"] == "True", "the new leader works"

    world.run(story)
