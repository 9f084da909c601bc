"""Runs a scenario with teams, balloons, joins and scaling. All of these controllers run in every replica."""

from __future__ import annotations

import asyncio

from fuzz.fleet.balloonchecks import NoBalloonInTheWay
from fuzz.fleet.clouds import Cloud
from fuzz.fleet.configs import CLOUD_POOL
from fuzz.fleet.deployments import Deployments
from fuzz.fleet.flapchecks import NothingMovesForAFlap
from fuzz.fleet.frontdoor import FrontDoor
from fuzz.fleet.lendingchecks import NoOwnerWaitsForABorrower
from fuzz.fleet.machines import capacity_of
from fuzz.fleet.ownerchecks import NodesAndOwners
from fuzz.fleet.people import People, put_config
from fuzz.fleet.scalingchecks import NoNodeTakenFromAnybody
from fuzz.fleet.scenario import LAST_DEED_S, TEAMS, FleetScenario
from fuzz.gangchecks import NoGangPartBoundForLong
from fuzz.run import TAKEOVER_S, Run
from fuzz.scenario import ReplicaFault
from fuzz.shapes import kind_of
from fuzz.weather import LATEST_S
from muster.api.names import BORROWER_CLASS, LABEL_TEAM
from muster.fleet.balloons.config import CONFIG_KEY as BALLOONS_KEY
from muster.fleet.balloons.config import CONFIG_MAP as BALLOONS
from muster.fleet.balloons.deployment import PRIORITY_CLASS
from muster.fleet.joins.config import CONFIG_KEY as JOINS_KEY
from muster.fleet.joins.config import CONFIG_MAP as JOINS
from muster.fleet.scaling.config import CONFIG_KEY as SCALING_KEY
from muster.fleet.scaling.config import CONFIG_MAP as SCALING
from muster.kube.objects.apps import Deployment
from muster.manager.controllers import Parts
from muster.sim.replay.objects import GPU_MODEL
from muster.sim.virtual.cluster import VirtualCluster
from muster.sim.virtual.loop import VirtualLoop

CLASSES = {"high": 1000, BORROWER_CLASS: -1, PRIORITY_CLASS: -5}


class FleetRun(Run):
    """One run, with a longer end.

    A repaired node counts as broken for five more minutes. Balloons that found no room are tried again after as long.
    Pools of a cloud that failed are not trusted for ten minutes.
    """

    end_s, settle_s, last_words_s, rest_s = 2400.0, 420.0, 340.0, 90.0

    def __init__(self, scenario: FleetScenario, loop: VirtualLoop) -> None:
        self._fleet = scenario
        if scenario.troubles or scenario.cloud.rough:
            self.settle_s = 1300.0
        super().__init__(scenario, loop)

    def _make_cluster(self) -> VirtualCluster:
        cluster = super()._make_cluster()
        self._door = FrontDoor(cluster.core, cluster.trace)
        cluster.server = self._door
        return cluster

    def _check(self, stale_s: float) -> NoGangPartBoundForLong:
        found = super()._check(stale_s)
        names = [f"node-{number:05d}" for number in range(self._fleet.nodes)]
        self._people = People(self.cluster, names)
        acted_s = stale_s + LATEST_S * bool(self._fleet.weather.late)  # what was known when a write was sent
        self._owners = NodesAndOwners(self.view, self._door, self._people, acted_s)
        begins = self._start + LAST_DEED_S + stale_s + LATEST_S
        NothingMovesForAFlap(self.view, self._door, self.cluster.trace, stale_s, self._fleet.shares, begins)
        self._balloons = NoBalloonInTheWay(self.view, stale_s, self._fleet.disturbed_until)
        self._lending = NoOwnerWaitsForABorrower(self.view, stale_s, self._fleet.disturbed_until)
        return found

    def _prepare(self) -> None:
        fleet = self._fleet
        self._taken = NoNodeTakenFromAnybody(self.view, fleet.stale_s)
        self._cloud = Cloud(
            self.cluster, self.nodes, fleet.cloud, capacity_of(fleet.machine), self._fork(), self._taken.asked
        )
        self._taken.groups = self._cloud.simulated.groups
        labels = {"pool": CLOUD_POOL, GPU_MODEL: fleet.machine.model}
        for pool in fleet.scaled:
            self._cloud.group(pool.name, pool.min, labels, held=pool.held)
        self._providers = {"simulated": self._cloud}
        self._parts = Parts(teams=True, balloons=True, joins=True, scaling=True)
        Deployments(self.cluster)

    async def _furnish(self) -> None:
        call = self.cluster.call
        for name, value in CLASSES.items():
            policy = "Never" if name == PRIORITY_CLASS else "PreemptLowerPriority"
            body = {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
            call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
        call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", kind_of(Deployment.RESOURCE))
        for team in TEAMS:
            call("POST", "/api/v1/namespaces", {"metadata": {"name": f"team-{team}", "labels": {LABEL_TEAM: team}}})
        for pool in self._fleet.pools:
            for node in pool.nodes:
                labels = {"pool": pool.name, GPU_MODEL: node.model}
                await self.nodes.add(1, capacity=capacity_of(node), labels=labels)
        put_config(self.cluster, BALLOONS, BALLOONS_KEY, self._fleet.balloons)
        put_config(self.cluster, SCALING, SCALING_KEY, self._fleet.scaling)
        put_config(self.cluster, JOINS, JOINS_KEY, "")
        self.view.begin()
        for deed in self._fleet.deeds:
            self._loop.call_at(self._start + deed.at, self._people.do, deed)
        for trouble in self._fleet.troubles:
            self._loop.call_at(trouble.start, self._cloud.strike, trouble)
            self._loop.call_at(trouble.end, self._cloud.relent, trouble)
        self._faults_of_the_cloud = asyncio.create_task(self._cloud.run())

    def _disturb(self, fault: ReplicaFault) -> None:
        super()._disturb(fault)
        until = self._loop.now + fault.back_s + TAKEOVER_S
        self._lending.disturb(until)
        self._balloons.disturb(until)

    def _is_spared(self, node: str) -> bool:
        """A cloud takes a machine back whose Node object was deleted."""
        return self.nodes.nodes[node].number >= self._fleet.nodes or super()._is_spared(node)

    async def _register_again(self, name: str, number: int) -> None:
        self._people.gone(name)
        for pool in self._fleet.pools:
            if 0 <= number - pool.first < len(pool.nodes):
                node = pool.nodes[number - pool.first]
                labels = {"pool": pool.name, GPU_MODEL: node.model}
                await self.nodes.register_again(name, capacity=capacity_of(node), labels=labels)

    def _look_at_rest(self) -> None:
        self._owners.at_rest(self._fleet.shares)
        self._balloons.at_rest()
        self._taken.at_rest({pool.name: (pool.min, pool.max) for pool in self._fleet.scaled})
        self._faults_of_the_cloud.cancel()
