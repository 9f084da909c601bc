"""A leader that takes over while jobs wait, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fuzz.workload import JobSpec
from muster.sim.supervisor import SimSupervisor
from tests.support.virtualreplicas import JOBS, World

LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/muster-controller"


@pytest.mark.slow
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


GRACE_S = 600


class Taken:
    """A job of two nodes whose supervisors run, and a controller that stops and comes back."""

    def __init__(self) -> None:
        spec = JobSpec(
            name="gone",
            namespace="default",
            size=2,
            gpus=8,
            whole=True,
            runs_s=10_000.0,
            arrives_s=0.0,
            grace_s=GRACE_S,
        )
        self.world = World(3, supervised={spec.key: spec}, stop_s=GRACE_S / 2)
        assert self.world.ranks is not None
        self.ranks = self.world.ranks
        self.supervisors = list[SimSupervisor]()

    async def begin(self, **spec: Any) -> None:
        """Run the job, and end the controller."""
        self.world.add_job("gone", 2, stopGraceSeconds=GRACE_S, **spec)
        await self.ranks.until(lambda: self._states() == ["running"] * 2, "they run", timeout_s=120.0)
        self.supervisors = self.ranks.of("default/gone")
        self.world.replicas[0].kill()
        await asyncio.sleep(30.0)

    def _states(self) -> list[str]:
        return [one.state for one in self.ranks.of("default/gone")]


@pytest.mark.parametrize("recreated", [False, True], ids=["gone", "another job has its name"])
def test_supervisors_of_a_job_deleted_without_a_leader_exit_at_their_next_poll(recreated: bool) -> None:
    """The controller never saw the deletion. A pod that is deleted waits for its directive for half of the grace."""
    taken = Taken()

    async def story() -> None:
        await taken.begin()
        taken.world.call("DELETE", f"{JOBS}/gone")
        if recreated:
            taken.world.add_job("gone", 9)
        await asyncio.sleep(5.0)
        taken.world.replicas[0].start()
        await taken.ranks.until(
            lambda: all(one.state == "exited" for one in taken.supervisors), "they exit", timeout_s=60.0
        )
        assert {one.exit_code for one in taken.supervisors} == {1}

    taken.world.run(story)


@pytest.mark.slow
def test_supervisors_of_a_job_that_exists_run_on_under_a_new_leader() -> None:
    taken = Taken()

    async def story() -> None:
        await taken.begin()
        taken.world.replicas[0].start()
        await asyncio.sleep(120.0)
        assert taken.ranks.of("default/gone") == taken.supervisors
        assert {one.state for one in taken.supervisors} == {"running"}

    taken.world.run(story)
