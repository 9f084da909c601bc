"""Builds the controllers that run under the lease of `muster controller`, and in simulations of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

from muster.api.handover import Handover
from muster.doctor.block.controller import BlockController
from muster.fleet.balloons.controller import BalloonController
from muster.fleet.joins.controller import JoinController
from muster.fleet.preflight.controller import PreflightController
from muster.fleet.providers.base import Provider
from muster.fleet.remediation.controller import RemediationController
from muster.fleet.scaling.controller import ScalingController
from muster.fleet.scaling.demands import Demands
from muster.kube.client import Client
from muster.kube.clock import steady_time
from muster.kube.health import Progress
from muster.kube.informers import Informers
from muster.kube.leader import LeaderElector, Term
from muster.manager.lacks import listener
from muster.network.uplink.controller import UplinkController
from muster.network.uplink.hub import Hub
from muster.scheduler.controller import SchedulerController
from muster.scheduler.plan import Settings
from muster.scheduler.shadow import Shadow
from muster.teams.controller import TeamsController
from muster.trainingjobs.controller import TrainingJobController

Work = Coroutine[Any, Any, None]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Selects the controllers that run in addition to the scheduler.

    Attributes:
        teams: assigns nodes to teams.
        balloons: creates pods that keep idle nodes from looking idle.
        joins: opens new nodes at a pace that the API server can take.
        scaling: adds nodes for gangs, and deletes idle nodes.
        health: takes broken nodes out of use, repairs them, and returns them to use.
        preflight: tests nodes before pods are scheduled on them.
        blocks: removes blocks of accounts that have ended (`muster doctor block`).
        uplink: the hub of agents, if the uplink's budget is shared.
    """

    teams: bool = False
    balloons: bool = False
    joins: bool = False
    scaling: bool = False
    health: bool = False
    preflight: bool = False
    blocks: bool = False
    uplink: Hub | None = None


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Arguments that all controllers share.

    Attributes:
        client: the client of the API server. The elector's fence checks each write of a controller.
        informers: the informers, with one watch per kind.
        namespace: the namespace in which Muster runs.
        identity: the name of this process, for records and Events.
        elector: the elector of the lease under which the controllers run.
        clock: returns seconds since the epoch.
        progress: receives the progress marks of all controllers.
        rng: returns a source of jitter for the controller with this name.
        registry: the registry of all metrics.
    """

    client: Client
    informers: Informers
    namespace: str
    identity: str
    elector: LeaderElector
    clock: Callable[[], float] = steady_time
    progress: Progress | None = None
    rng: Callable[[str], random.Random] = lambda name: random.Random()
    registry: CollectorRegistry = REGISTRY

    @property
    def common(self) -> dict[str, Any]:
        """Returns the shared arguments as keyword arguments of a controller."""
        return {
            "informers": self.informers,
            "clock": self.clock,
            "progress": self.progress,
            "registry": self.registry,
        }


def works_of(
    shared: Shared,
    parts: Parts,
    *,
    settings: Settings,
    jobs: TrainingJobController | None = None,
    shadow: Shadow | None = None,
    muster_image: str = "",
    providers: Mapping[str, Provider] | None = None,
    step_image: str = "",
) -> list[Work]:
    """Return a coroutine function for each controller. All of them run in parallel while this process leads.

    Args:
        shared: the arguments that all controllers share.
        parts: the controllers to run. With `shadow` only the scheduler runs, because all others write.
        settings: settings of the scheduler.
        jobs: the controller of training jobs in this process. The scheduler reports to it why gangs wait.
        shadow: called with every plan of the scheduler, instead of executing the plan.
        muster_image: the image of balloons, and of tests if their configuration names no image.
        providers: providers of nodes, in addition to those of scaling.
        step_image: the image of pods that reset or reboot machines.
    """
    shared = replace(shared, client=shared.elector.fence(shared.client))
    demands, handover = Demands(shared.clock), Handover()
    if jobs is not None and parts.health:
        jobs.follow_leaving(handover)

    async def schedule(term: Term) -> None:
        scheduler = SchedulerController(
            shared.client,
            shared.namespace,
            shared.identity,
            settings=settings,
            waits=jobs.waits if jobs is not None else None,
            forecasts=jobs.forecast if jobs is not None else None,
            lacks=listener(demands) if parts.scaling else None,
            handover=handover if parts.teams or parts.health else None,
            shadow=shadow,
            rng=shared.rng("scheduler"),
            **shared.common,
        )
        await scheduler.run(asyncio.Event(), term=term)

    works = [shared.elector.while_leading(schedule, "scheduler")]
    if shadow is None:
        works += _teams(shared, handover) if parts.teams else []
        works += _fleet(shared, parts, demands, muster_image, providers)
        works += _health(shared, settings, handover, step_image, providers) if parts.health else []
        works += _preflight(shared, settings, muster_image) if parts.preflight else []
        works += _blocks(shared) if parts.blocks else []
        works += _uplink(shared, settings, parts.uplink) if parts.uplink is not None else []
    return works


def _teams(shared: Shared, handover: Handover) -> list[Work]:
    async def allocate(term: Term) -> None:
        teams = TeamsController(
            shared.client,
            shared.namespace,
            shared.identity,
            handover=handover,
            rng=shared.rng("teams"),
            **shared.common,
        )
        await teams.run(term=term)

    return [shared.elector.while_leading(allocate, "teams")]


def _fleet(
    shared: Shared, parts: Parts, demands: Demands, muster_image: str, providers: Mapping[str, Provider] | None
) -> list[Work]:
    """Returns the controllers of balloons, joins and scaling."""
    client, namespace, elector, works = shared.client, shared.namespace, shared.elector, list[Work]()
    if parts.balloons:
        balloons = BalloonController(client, namespace, muster_image, rng=shared.rng("balloons"), **shared.common)
        works.append(elector.while_leading(balloons.run, "balloons"))
    joins = JoinController(client, namespace, rng=shared.rng("joins"), **shared.common) if parts.joins else None
    if joins is not None:
        works.append(elector.while_leading(joins.run, "joins"))

    async def scale(term: Term) -> None:
        scaling = ScalingController(
            client,
            namespace,
            shared.identity,
            demands,
            providers=providers,
            coming_max=(lambda: joins.coming_max) if joins is not None else None,
            rng=shared.rng("scaling"),
            **shared.common,
        )
        await scaling.run(term=term)

    if parts.scaling:
        works.append(elector.while_leading(scale, "scaling"))
    return works


def _health(
    shared: Shared, settings: Settings, handover: Handover, step_image: str, providers: Mapping[str, Provider] | None
) -> list[Work]:
    """Returns the remediation controller."""

    async def remedy(term: Term) -> None:
        remediation = RemediationController(
            shared.client,
            shared.namespace,
            step_image=step_image,
            handover=handover,
            providers=providers,
            team_key=settings.team_key,
            rng=shared.rng("remediation"),
            **shared.common,
        )
        await remediation.run(term)

    return [shared.elector.while_leading(remedy, "remediation")]


def _preflight(shared: Shared, settings: Settings, muster_image: str) -> list[Work]:
    """Returns the controllers that test nodes."""

    async def test(term: Term) -> None:
        preflight = PreflightController(
            shared.client,
            shared.namespace,
            muster_image,
            team_key=settings.team_key,
            rng=shared.rng("preflight"),
            **shared.common,
        )
        await preflight.run(term)

    return [shared.elector.while_leading(test, "preflight")]


def _blocks(shared: Shared) -> list[Work]:
    """Returns the controller that removes ended blocks."""
    blocks = BlockController(shared.client, rng=shared.rng("blocks"), **shared.common)
    return [shared.elector.while_leading(blocks.run, "blocks")]


def _uplink(shared: Shared, settings: Settings, hub: Hub) -> list[Work]:
    """Returns the controller of the uplink's budget."""
    uplink = UplinkController(
        shared.client,
        shared.namespace,
        hub,
        team_key=settings.team_key,
        rng=shared.rng("uplink"),
        **shared.common,
    )
    return [shared.elector.while_leading(uplink.run, "uplink")]
