"""The addresses of a node in the network agent: the store, the warm pool and the reconciler.

The CNI daemon answers requests only after `start`. Then the store is open, and addresses that the kernel uses are held.
So an agent that starts while pods run does not give their addresses to others (amazon-vpc-cni-k8s#711).
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

import msgspec

from muster.network.addresses.addresses import Addresses, PoolStatus
from muster.network.addresses.bootclock import BootClock
from muster.network.addresses.config import AddressesConfig
from muster.network.addresses.errors import StoreError
from muster.network.addresses.metrics import AddressMetrics
from muster.network.addresses.page import AddressesPage
from muster.network.addresses.providers.base import Provider
from muster.network.addresses.reconcile.kernel import look_at_kernel
from muster.network.addresses.reconcile.plan import Plan
from muster.network.addresses.reconcile.reconciler import PERIOD_S, Exclusive, Reconciler
from muster.network.addresses.reconcile.runtime import look_at_runtime
from muster.network.addresses.warmpool import STEP_S, WarmPool
from muster.network.agent.part import PartSetup

log = logging.getLogger(__name__)

FOLDER: Final = "addresses"
_AGAIN_S: Final = 2.0
_START: Final = "addresses-start"
_POOL: Final = "addresses-pool"
_RECONCILER: Final = "addresses-reconciler"
_SLACK_S: Final = 120.0


class AddressService:
    """The addresses of this node.

    Args:
        setup: of the part that uses it.
        config: of the addresses.
        provider: gives the blocks.
    """

    def __init__(self, setup: PartSetup, config: AddressesConfig, provider: Provider) -> None:
        self._setup = setup
        self._config = config
        self._provider = provider
        self._clock = BootClock(setup.paths.proc)
        self._folder = setup.paths.state / FOLDER
        self._addresses: Addresses | None = None
        self._reconciler: Reconciler | None = None
        self.problem = "the agent has just started"
        """Why the store is not open; empty if it is."""
        setup.registry.register(AddressMetrics(self._status, lambda: self._plan, lambda: self._freed))
        setup.publish("addresses", lambda: msgspec.json.encode(self._page()))

    async def start(self) -> Addresses:
        """Open the store and return it. Waits while an older agent holds it, or while the disk fails.

        A store that cannot be opened must not end the other parts of the agent. Until it is open, CNI requests are
        answered with "try again later", and `problem` says why.
        """
        self._setup.progress.expect(_START, _SLACK_S)
        while True:
            self._setup.progress.mark(_START)
            try:
                opened = await asyncio.to_thread(self._open)
                kernel = await asyncio.to_thread(look_at_kernel)
            except StoreError as error:
                if str(error) != self.problem:
                    log.error("%s", error)
                self.problem = str(error)
            else:
                if kernel is not None:
                    known = {assigned.key for assigned in opened.all()}
                    unrecorded = (ips for key, ips in kernel.interfaces.items() if key not in known)
                    opened.hold(kernel.local.union(*unrecorded))
                    break
                opened.close()
                self.problem = "the kernel does not list its interfaces: the agent needs the capability NET_ADMIN"
            await asyncio.sleep(_AGAIN_S)
        self._setup.progress.drop(_START)
        self.problem = ""
        self._addresses = opened
        return opened

    async def run(self, exclusive: Exclusive) -> None:
        """Keep the pool warm and compare the views, until cancelled. `exclusive` keeps ADD and DEL from a key."""
        if self._addresses is None:
            raise RuntimeError("start has not returned")
        progress = self._setup.progress
        pool = WarmPool(self._addresses, self._provider, self._config.targets)
        socket = Path(self._config.runtime_socket)
        self._reconciler = Reconciler(
            self._addresses,
            self._clock,
            kernel=look_at_kernel,
            runtime=lambda: look_at_runtime(socket),
            provider=lambda: pool.problems,
            exclusive=exclusive,
        )
        progress.expect(_POOL, STEP_S + _SLACK_S)
        progress.expect(_RECONCILER, PERIOD_S + _SLACK_S)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(pool.run(self._clock.now_s, lambda: progress.mark(_POOL)))
                group.create_task(self._reconciler.run(lambda: progress.mark(_RECONCILER)))
        finally:
            await self._provider.close()
            await asyncio.to_thread(self._addresses.close)

    def _open(self) -> Addresses:
        return Addresses(
            self._folder,
            self._clock,
            families=self._config.families,
            cooldown_s=self._config.cooldown_s,
            warm=self._config.targets.warm,
        )

    @property
    def _plan(self) -> Plan:
        return self._reconciler.plan if self._reconciler is not None else Plan()

    @property
    def _freed(self) -> int:
        return self._reconciler.freed if self._reconciler is not None else 0

    def _status(self) -> PoolStatus | None:
        return self._addresses.status() if self._addresses is not None else None

    def _page(self) -> AddressesPage:
        return AddressesPage(
            node=self._setup.node,
            problem=self.problem,
            status=self._status(),
            blocks=self._addresses.blocks() if self._addresses is not None else (),
            findings=self._plan.findings,
            blind=self._plan.blind,
            freed=self._freed,
        )


def make_addresses(setup: PartSetup, config: AddressesConfig) -> AddressService:
    """Return the addresses of this node, with the provider of the configuration."""
    return AddressService(setup, config, _provider(setup, config))


def _provider(setup: PartSetup, config: AddressesConfig) -> Provider:
    if config.provider == "aws":
        from muster.kube.connection.awscalls import AwsCalls
        from muster.network.addresses.providers.aws import AwsBlocks

        return AwsBlocks(AwsCalls("ec2"))
    if config.provider == "azure":
        from muster.network.addresses.providers.azure import AzureBlocks

        return AzureBlocks()
    from muster.network.addresses.providers.static import StaticBlocks

    return StaticBlocks(setup.client, setup.node)
