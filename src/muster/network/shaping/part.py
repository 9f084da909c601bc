"""The part `shaping` of the network agent: enforces the uplink's budget on this node."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from muster.network.agent.part import Part, PartSetup
from muster.network.netlink.socket import ROUTE, NetlinkSocket
from muster.network.shaping.config import ShapingConfig, hub_address, reserved_of
from muster.network.shaping.enforcer import Enforcer
from muster.network.shaping.links import uplink_names
from muster.network.shaping.linkwatch import open_watch, watch_links
from muster.network.shaping.memory import Memory
from muster.network.shaping.metrics import ShapingMetrics
from muster.network.shaping.node import NodeLimiter
from muster.network.shaping.policing.policer import Policer
from muster.network.shaping.program import Network
from muster.network.shaping.shaper import ALWAYS_INTERNAL, Shaper
from muster.network.shaping.tcx import programs_before
from muster.network.traffic.classes import Classes
from muster.network.traffic.config import classes_of
from muster.network.uplink.link import Link, tls_dial, token_file
from muster.network.uplink.wire import Pair

log = logging.getLogger(__name__)

PAGE: Final = "shaping"
FOLDER: Final = "shaping"
_MEGABIT: Final = 1_000_000


def make_part(setup: PartSetup, config: ShapingConfig) -> Part:
    """Make the part."""
    return ShapingPart(setup, config)


class ShapingPart:
    """Enforces the budget.

    Args:
        setup: of the agent.
        config: its section.
    """

    def __init__(self, setup: PartSetup, config: ShapingConfig) -> None:
        self._setup, self._config = setup, config
        self._classes = covered(classes_of(setup.config.traffic), setup.config.uplink.cls)

    async def run(self) -> None:
        """Enforce until cancelled. The limits stay in the kernel.

        Raises:
            OSError: the kernel refuses to list links.
        """
        setup, uplink = self._setup, self._setup.config.uplink
        with ThreadPoolExecutor(1, thread_name_prefix="shaping") as thread:
            loop = asyncio.get_running_loop()

            async def kernel(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
                return await loop.run_in_executor(thread, partial(function, *args, **kwargs))

            socket, watch = await kernel(NetlinkSocket, ROUTE), await kernel(open_watch)
            uplinks = await kernel(uplink_names, socket)
            policer = await kernel(self._policer) if self._config.policing else None
            try:
                host, port = hub_address(self._config, setup.namespace)
                dial = tls_dial((host, port), host, Path(self._config.hub.ca))
                memory = Memory(setup.paths.run / FOLDER / "limits", _boot(setup.paths.proc))
                link = Link(setup.node, dial, token_file(Path(self._config.hub.token)))
                link.rates, link.lease_end_s = memory.load()
                enforcer = Enforcer(
                    NodeLimiter(self._shaper(socket), policer, setup.pods),
                    link,
                    setup.pods,
                    start=Pair(*map(max, uplink.static_share.bps, uplink.floor.bps)),
                    dry_run=uplink.dry_run,
                    line=partial(line_rate, setup.paths.sys, uplinks, uplink.line_rate.bps),
                    memory=memory,
                    progress=setup.progress,
                    metrics=ShapingMetrics(setup.registry),
                    kernel=kernel,
                )
                setup.publish(PAGE, enforcer.page)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(link.run())
                    tasks.create_task(enforcer.run())
                    tasks.create_task(watch_links(watch, enforcer.links_changed))
            finally:
                watch.close()
                socket.close()
                if policer is not None:
                    policer.close()

    def remove(self) -> None:
        """Remove all limits from the kernel. May be repeated. Raises OSError."""
        with NetlinkSocket(ROUTE) as socket:
            self._shaper(socket).teardown()
        if Path(self._config.bpf_names).exists():
            policer = self._make_policer()
            try:
                policer.teardown()
            finally:
                policer.close()
        (self._setup.paths.run / FOLDER / "limits").unlink(missing_ok=True)

    def _shaper(self, socket: NetlinkSocket) -> Shaper:
        return Shaper(
            socket,
            classes=self._classes,
            reserved=reserved_of(self._config),
            state=self._setup.paths.run / FOLDER / "classes.json",
            patterns=self._config.interfaces,
            programs_before=programs_before,
        )

    def _policer(self) -> Policer | None:
        """Return the policer; None with a warning where the kernel or the container does not allow it."""
        try:
            return self._make_policer()
        except OSError as error:
            log.warning("uplink: host-network pods are not limited: %s; set shaping.policing: false", error)
            return None

    def _make_policer(self) -> Policer:
        reserved = reserved_of(self._config)
        classes = {**self._classes, **dict.fromkeys(ALWAYS_INTERNAL, False), **dict.fromkeys(reserved.networks, False)}
        return Policer(Path(self._config.bpf_names), self._setup.paths.cgroup, classes, reserved.ports)


def covered(classes: Classes, name: str) -> dict[Network, bool]:
    """Return whether the budget of the class covers a network, for all that are in a list.

    Raises:
        ValueError: the class does not exist.
    """
    if name not in classes.names:
        raise ValueError(f"uplink.class: {name} is not a class; write one of {', '.join(classes.names)}")
    found: dict[Network, bool] = {}
    everything: Iterable[tuple[int, Any]] = (
        (4, ipaddress.IPv4Address),
        (6, ipaddress.IPv6Address),
    )
    for version, address in everything:
        found[ipaddress.ip_network((address(0), 0))] = name == "internet"
        for each in classes.ranges(version):
            for network in ipaddress.summarize_address_range(address(each.first), address(each.last)):
                found[network] = each.cls == name
    return found


def line_rate(sys: Path, names: Iterable[str], otherwise: Pair) -> Pair:
    """Return what the links carry together, in bits/s; `otherwise` if one does not say, as virtual ones do."""
    total = 0
    try:
        for name in names:
            speed = int((sys / "class/net" / name / "speed").read_text())
            if speed <= 0:
                return otherwise
            total += speed
    except (OSError, ValueError):
        return otherwise
    return Pair(total * _MEGABIT, total * _MEGABIT) if total else otherwise


def _boot(proc: Path) -> str:
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
