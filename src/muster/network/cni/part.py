"""The part `pods` of the network agent: the addresses of the node, the CNI daemon, and what pods need of the node."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from pathlib import Path
from typing import Final

import msgspec

from muster.kube.errors import ApiError
from muster.network.addresses.addresses import Addresses
from muster.network.addresses.block import Family
from muster.network.addresses.bootclock import BootClock
from muster.network.addresses.errors import StoreError
from muster.network.addresses.service import FOLDER, AddressService, make_addresses
from muster.network.agent.part import Part, PartSetup
from muster.network.cni import forwarding, install, masquerade
from muster.network.cni.answers import answer
from muster.network.cni.config import PodsConfig
from muster.network.cni.interfaces.kinds import make_kinds
from muster.network.cni.metrics import CniMetrics
from muster.network.cni.operations import Operations
from muster.network.cni.policies import has_network_policies
from muster.network.cni.server import CniServer

log = logging.getLogger(__name__)

SOCKET: Final = "cni.sock"
PAGE: Final = "pods"
SHIM: Final = Path("/opt/muster/cni/muster-cni")
"""Where the image has the plugin (deploy/Dockerfile)."""
_LOOP: Final = "pods"
_PERIOD_S: Final = 10.0
_LATE_S: Final = 120.0
_POLICIES_S: Final = 120.0
"""Mean time between two questions whether NetworkPolicies exist: all nodes of a large cluster may be asking."""


class PodsPage(msgspec.Struct, frozen=True, rename="camel"):
    """What the part has set up on the node.

    Attributes:
        installed: whether the runtime finds the list of plugins.
        preferred: lists of other networks that the runtime prefers to it.
        problem: what is not as it should be, and what to do; empty if nothing is.
    """

    installed: bool
    preferred: tuple[str, ...]
    problem: str


def make_part(setup: PartSetup, config: PodsConfig) -> Part:
    """Make the part."""
    return PodsPart(setup, config, make_addresses(setup, config.addresses), SHIM)


class PodsPart:
    """Serves the CNI requests of this node.

    Args:
        setup: of the agent.
        config: its section.
        service: the addresses.
        shim: the plugin that is installed.
    """

    def __init__(self, setup: PartSetup, config: PodsConfig, service: AddressService, shim: Path) -> None:
        self._setup = setup
        self._config = config
        self._service = service
        self._shim = shim
        self._socket = setup.paths.run / SOCKET
        self._has_ipv6 = Family.IPV6 in config.addresses.families
        self._began = False
        self._ask_again_s = 0.0
        self._policies = ""
        self._connections = ""
        self._installing = "the agent has just started" if config.install else ""
        self._metrics = CniMetrics(setup.registry)
        setup.publish(PAGE, lambda: msgspec.json.encode(self.page()))

    def page(self) -> PodsPage:
        """Return what is set up."""
        return PodsPage(
            installed=install.is_installed(self._config),
            preferred=tuple(install.preferred_lists(self._config)) if self._config.install else (),
            problem=self._connections or self._installing,
        )

    async def run(self) -> None:
        """Answer requests until cancelled. What pods have stays."""
        addresses = await self._service.start()
        operations = Operations(
            addresses, make_kinds(self._setup.paths.proc, self._setup.paths.sys), lambda: self._connections
        )
        server = CniServer(self._socket, self._metrics.timed(lambda asked: answer(operations, asked)))
        self._setup.progress.expect(_LOOP, _LATE_S)
        await asyncio.to_thread(self._enable)
        await asyncio.to_thread(server.start)
        tasks = {
            asyncio.create_task(self._service.run(operations.exclusive)),
            asyncio.create_task(self._keep(server)),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            await asyncio.to_thread(server.stop)  # before the store is closed
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def remove(self) -> None:
        """Remove the list of plugins, the rules, and the plugin.

        Raises:
            OSError: pods still have addresses. They need the plugin to end, so it stays.
        """
        if self._config.install:
            install.uninstall_list(self._config)
        masquerade.remove()
        if not self._config.install:
            return
        if not (self._setup.paths.state / FOLDER).exists():
            install.uninstall_program(self._config)
            return
        try:
            store = Addresses(self._setup.paths.state / FOLDER, BootClock(self._setup.paths.proc))
        except StoreError as error:
            raise OSError(f"the addresses of pods are not known: {error}") from None
        held = len(store.all())
        store.close()
        if held:
            raise OSError(f"{held} interfaces of pods still have addresses; drain the node, then repeat this")
        install.uninstall_program(self._config)

    async def _keep(self, server: CniServer) -> None:
        while True:
            await asyncio.to_thread(self._enable)
            try:
                await asyncio.to_thread(server.restore)
            except OSError as error:
                log.warning("the CNI socket cannot be put back: %s", error)
            await self._install()
            self._metrics.ready.set(not (self._connections or self._installing))
            self._setup.progress.mark(_LOOP)
            await asyncio.sleep(_PERIOD_S)

    def _enable(self) -> None:
        """Turn on what connections of pods need. Forwarding that was turned off since the start is only reported."""
        proc, problem = self._setup.paths.proc, ""
        try:
            if not self._began:
                forwarding.enable(proc, ipv6=self._has_ipv6)
                if self._config.masquerade.enabled:
                    masquerade.apply(self._config.masquerade.internal)
                self._began = True
            if self._config.masquerade.enabled and not masquerade.is_applied():
                log.warning("the rules that masquerade pods were removed; they are put back")
                masquerade.apply(self._config.masquerade.internal)
            problem = forwarding.problem(proc, ipv6=self._has_ipv6)
        except OSError as error:
            problem = str(error)
        if problem and problem != self._connections:
            log.warning("pods may have lost connections: %s", problem)
        self._connections = problem

    async def _install(self) -> None:
        if not self._config.install:
            return
        problem = ""
        try:
            await asyncio.to_thread(install.install_program, self._shim, self._config)
            problem = await self._refusal()
            if not problem:
                await asyncio.to_thread(install.install_list, self._config)
                preferred = install.preferred_lists(self._config)
                if preferred:
                    problem = f"the runtime uses {preferred[0]} instead of {install.LIST}; remove the other network"
        except OSError as error:
            problem = str(error)
        if problem and problem != self._installing:
            log.warning("%s", problem)
        self._installing = problem

    async def _refusal(self) -> str:
        """Return why the list must not be installed; empty if it may be. One that is there stays."""
        if self._config.network_policy_enforcer or install.is_installed(self._config):
            return ""
        if time.monotonic() >= self._ask_again_s:
            self._ask_again_s = time.monotonic() + random.uniform(0.5, 1.5) * _POLICIES_S
            self._policies = await self._ask_policies()
        return self._policies

    async def _ask_policies(self) -> str:
        try:
            exist = await has_network_policies(self._setup.client)
        except ApiError as error:
            return f"{install.LIST} is not installed: whether NetworkPolicies exist is not known: {error}"
        if not exist:
            return ""
        return (
            f"{install.LIST} is not installed: NetworkPolicies exist, and Muster does not enforce them; install a"
            " program that does, and name it in pods.networkPolicyEnforcer"
        )
