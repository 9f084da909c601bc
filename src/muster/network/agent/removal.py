"""Undoes on a node what the parts of the network agent set up there: `muster network agent --remove`.

It removes every part, also one that the configuration has turned off since. It asks no API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry

from muster.api.names import LABEL_TEAM, SYSTEM_NAMESPACE
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.health import health_app, serve
from muster.kube.progress import Progress
from muster.network.addresses.config import AddressesConfig
from muster.network.agent.part import HostPaths, PartSetup
from muster.network.agent.parts import PARTS, Entry
from muster.network.agent.statelock import locked
from muster.network.config import NetworkConfig
from muster.network.localpods.follow import FollowedPods

_AGAIN_S: Final = 30.0
_NO_SERVER: Final = "https://no-api-server.invalid"


@dataclass(frozen=True, slots=True)
class Removed:
    """The outcome for one part.

    Attributes:
        part: its section.
        problem: why it was not removed, or not fully; "" if nothing of it is left.
    """

    part: str
    problem: str

    def __str__(self) -> str:
        return f"{self.part}: not removed: {self.problem}" if self.problem else f"{self.part}: removed"


def remove_parts(paths: HostPaths, config: NetworkConfig) -> list[Removed]:
    """Remove all parts, in the reverse order of the table. A part that fails does not prevent the others.

    Args:
        paths: folders of the node.
        config: names folders and interfaces; which parts it turns on does not matter.
    """
    return [Removed(each.section, _remove(each, paths, config)) for each in reversed(PARTS)]


def _remove(entry: Entry, paths: HostPaths, config: NetworkConfig) -> str:
    try:
        # the provider of addresses is not asked, and a cloud's would need its library and credentials
        pods = msgspec.structs.replace(config.pods, addresses=AddressesConfig())
        config = msgspec.structs.replace(config, pods=pods)
        section = getattr(config, entry.section)
        importlib.import_module(entry.module).make_part(_setup(paths, config), section).remove()
    except Exception as error:  # any: the other parts must be removed whatever the reason is
        return str(error) or type(error).__name__
    return ""


def _setup(paths: HostPaths, config: NetworkConfig) -> PartSetup:
    client, progress = Client(ClusterConfig(server=_NO_SERVER)), Progress()
    return PartSetup(
        node="",
        node_uid=lambda: "",
        paths=paths,
        pods=FollowedPods(client, "", LABEL_TEAM, paths.state, paths.cgroup, progress),
        client=client,
        namespace=SYSTEM_NAMESPACE,
        progress=progress,
        registry=CollectorRegistry(),
        config=config,
    )


async def run_removal(
    paths: HostPaths,
    config: NetworkConfig,
    stop: asyncio.Event,
    report: Callable[[Removed], None],
    *,
    listen: tuple[str, int] | None = None,
    on_ready: Callable[[int], None] | None = None,
) -> bool:
    """Remove all parts, and return whether nothing is left.

    Args:
        paths: folders of the node.
        config: see `remove_parts`.
        stop: ends the wait below.
        report: is called for each part whose outcome is new.
        listen: with a host and port, it repeats what failed, and then waits until `stop`. /readyz answers 200 once
            all parts are removed, so that a DaemonSet shows on which nodes they are.
        on_ready: called with the port.

    Raises:
        StateInUse: an agent runs with this state.
        OSError: the folder of the state cannot be created, or the address is in use.
    """
    known: dict[str, Removed] = {}

    def missing() -> str | None:
        if not known:
            return "the removal has not ended yet"
        return "; ".join(str(each) for each in known.values() if each.problem) or None

    async with AsyncExitStack() as stack:
        stack.enter_context(locked(paths.state))
        if listen is not None:
            app = health_app(Progress(), ready={"removal": missing}, registry=CollectorRegistry())
            port = await stack.enter_async_context(serve(app, *listen))
            if on_ready is not None:
                on_ready(port)
        while True:
            for each in await asyncio.to_thread(remove_parts, paths, config):
                if known.get(each.part) != each:
                    report(each)
                known[each.part] = each
            if listen is None or stop.is_set():
                return missing() is None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _AGAIN_S if missing() else None)
                return missing() is None
