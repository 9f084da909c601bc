"""The part `traffic` of the network agent: reads the kernel's counters, keeps the ledger, shows both."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from muster.kube.filelock import lock_file
from muster.network.agent.part import Part, PartSetup
from muster.network.localpods.cgroups import NET_CLS, unified_root
from muster.network.localpods.pod import LocalPod
from muster.network.traffic.backend import PULLS, Backend, BackendError
from muster.network.traffic.backends.choice import EBPF, BackendName, choose
from muster.network.traffic.cachejobs import CacheJob, cache_jobs
from muster.network.traffic.config import TrafficConfig, classes_of
from muster.network.traffic.exporter import Exporter, PodRow, View
from muster.network.traffic.interfaces import Interfaces, detect
from muster.network.traffic.ledger.charges import Share
from muster.network.traffic.ledger.ledger import Ledger, Limits, nic_of
from muster.network.traffic.ledger.state import Interface, LedgerState
from muster.network.traffic.meter import Meter
from muster.network.traffic.rdma import RdmaPort, read_ports
from muster.network.traffic.report import TrafficReport
from muster.network.traffic.uplink import read_interfaces
from muster.network.traffic.wanted import Wanted, cache_shares, pull_shares, rdma_owner, wanted

log = logging.getLogger(__name__)

PAGE: Final = "traffic"
FOLDER: Final = "traffic"
LOCK: Final = "lock"
CACHE_DAEMON_SET: Final = "muster-cache"
RUNTIMES: Final = tuple(
    f"system.slice/{unit}.service" for unit in ("containerd", "crio", "docker", "k3s", "rke2-server")
)
"""Control groups of container runtimes: the first one that exists pulls images."""
NO_CARD: Final = "this node has no network card that could be found: name them in traffic.uplinkInterfaces"
_LOOP: Final = "traffic"
_LATE_S: Final = 120.0


def make_part(setup: PartSetup, config: TrafficConfig) -> Part:
    """Make the part."""
    return TrafficPart(setup, config)


def find_interfaces(setup: PartSetup, config: TrafficConfig) -> Interfaces:
    """Return the network cards whose packets count. A node that is a container has only links with a default route.

    Raises:
        OSError: the kernel did not list its interfaces.
    """
    found = detect(setup.paths.sys)
    names = config.uplink_interfaces or found.nics or tuple(each.name for each in read_interfaces((), setup.paths.sys))
    return dataclasses.replace(found, nics=tuple(names))


class TrafficPart:
    """Accounts the traffic of this node.

    Args:
        setup: of the agent.
        config: its section.
    """

    def __init__(self, setup: PartSetup, config: TrafficConfig) -> None:
        self._setup = setup
        self._config = config
        self._interfaces: Interfaces | None = None
        self._backend: Backend | None = None
        self._lost = 0
        self._exporter = Exporter(config.max_series, exporter_names=config.exporter_names)
        self._ledger: Ledger | None = None
        self._meter: Meter | None = None
        self._lock: int | None = None
        self._pods: Mapping[str, LocalPod] = {}
        self._cache_jobs: Sequence[CacheJob] = ()
        self._cache_problem = ""
        self._failures = 0
        self._runtime_problem = ""
        self._uncounted: tuple[str, ...] = ()
        self._problem = "the counters have not been read yet"
        self._before: LedgerState | None = None
        self._measured_s: float | None = None
        self._interval_s = 0.0
        self.report = TrafficReport(node=setup.node, node_uid="", ledger_id="", taken_s=0.0)
        """The newest report of this node."""
        setup.registry.register(self._exporter)
        setup.publish(PAGE, self._page)

    async def run(self) -> None:
        """Read the counters once a period, until cancelled."""
        try:
            await self._repeat()
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    async def _repeat(self) -> None:
        self._setup.progress.expect(_LOOP, _LATE_S)
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            try:
                await self._whole_pass()
                self._problem = ""
            except (OSError, BackendError) as error:
                self._failures += 1
                if str(error) != self._problem:
                    log.warning("traffic cannot be counted: %s", error)
                self._problem = str(error)
            self._show()
            self._setup.progress.mark(_LOOP)
            due_s = max(due_s + self._config.period_s, loop.time() + self._config.period_s / 2)
            await asyncio.sleep(due_s - loop.time())

    async def _whole_pass(self) -> None:
        """Make a pass in a thread. If this is cancelled, wait for its end: the lock is held until then."""
        passing = asyncio.create_task(asyncio.to_thread(self._pass))
        try:
            await asyncio.shield(passing)
        finally:
            await asyncio.wait([passing])

    def remove(self) -> None:
        """Remove the kernel's counters, of all backends: the configuration may have named another one before.

        The ledger stays: it has what they counted until the agent's last pass.

        Raises:
            OSError: the kernel refused.
        """
        interfaces = find_interfaces(self._setup, self._config)
        names: tuple[BackendName, ...] = ("nftables", "iptables-legacy", "ebpf")
        refused = []
        for name in names:
            try:
                self._make_backend(interfaces, name).teardown()
            except (OSError, BackendError) as error:
                refused.append(f"{name}: {error}")
        if refused:
            raise OSError("; ".join(refused))

    def _make_backend(self, interfaces: Interfaces, name: BackendName) -> Backend:
        paths = self._setup.paths
        return choose(name, interfaces, cgroup_root=unified_root(paths.cgroup), proc_root=paths.proc)

    def _meter_now(self, ledger: Ledger) -> Meter:
        """Return the meter for the network cards that the node has now: a cloud's CNI attaches more of them.

        The kernel's counters survive the change.
        """
        interfaces = find_interfaces(self._setup, self._config)
        if self._meter is None or interfaces != self._interfaces:
            if self._meter is not None:
                self._lost += self._meter.lost
            backend = self._make_backend(interfaces, self._config.backend)
            if self._backend is not None and self._backend.name != backend.name:
                self._backend.teardown()
            meter = Meter(backend, classes_of(self._config), ledger)
            meter.setup()
            if interfaces.nics:
                log.info("counting with %s at %s", backend.name, ", ".join(interfaces.nics))
            else:
                log.warning("counting with %s at no network card: %s", backend.name, NO_CARD)
            self._meter, self._backend, self._interfaces = meter, backend, interfaces
        return self._meter

    def _pass(self) -> None:
        folder = self._setup.paths.state / FOLDER
        if self._ledger is None:
            folder.mkdir(parents=True, exist_ok=True)
            if self._lock is None:
                self._lock = _locked(folder)
            limits = Limits(self._config.keep_days * 86400.0, self._config.max_ended_jobs)
            self._ledger = Ledger(folder, limits)
        meter = self._meter_now(self._ledger)
        before, self._pods = self._pods, self._setup.pods.pods
        jobs_before = self._cache_jobs
        self._ask_cache()
        found = self._wanted()
        shares: dict[str, Sequence[Share]] = {
            PULLS: pull_shares(self._pods.values(), before.values()),
            **self._cache_shares(found, jobs_before),
        }
        interfaces = read_interfaces(self._config.uplink_interfaces, self._setup.paths.sys)
        boot = (self._setup.paths.proc / "sys/kernel/random/boot_id").read_text().strip()
        self._before = self._ledger.committed
        self._uncounted = found.uncounted
        ports = [_as_interface(each) for each in read_ports(self._setup.paths.sys)]
        owner = rdma_owner(self._pods.values(), before.values())
        self._ledger.absorb_ports(boot, ports, {each.name: owner for each in ports})
        now_s, moment_s = time.time(), time.monotonic()
        meter.measure(found, shares, boot, interfaces, now_s)
        # the clock of the node may be set at any time; without it the time since a former agent's reading is not known
        self._interval_s = (
            moment_s - self._measured_s if self._measured_s is not None else max(0.0, now_s - self._before.taken_s)
        )
        self._measured_s = moment_s

    def _ask_cache(self) -> None:
        path = self._config.data_cache.socket
        if not path:
            return
        try:
            self._cache_jobs, self._cache_problem = cache_jobs(path), ""
        except OSError as error:
            self._cache_problem = f"the data cache does not say whose its traffic is: {error}"

    def _wanted(self) -> Wanted:
        top = self._setup.paths.cgroup
        marked = self._cache_jobs if self._config.data_cache.marks else ()

        all_by_cgroup = self._config.backend == EBPF
        if not self._config.host_network_pods and not all_by_cgroup:
            pods = [each for each in self._pods.values() if not each.host_network]
            return wanted(pods, lambda pod: (), "", marked)

        def cgroups(pod: LocalPod) -> list[str]:
            return [str(top / each) for each in self._setup.pods.cgroups(pod) if not each.startswith(NET_CLS)]

        return wanted(self._pods.values(), cgroups, self._runtime_cgroup(top), marked, all_by_cgroup=all_by_cgroup)

    def _runtime_cgroup(self, top: Path) -> str:
        names = (self._config.runtime_cgroup,) if self._config.runtime_cgroup else RUNTIMES
        folders = (unified_root(top) / each for each in names)
        found = next((str(each) for each in folders if each.is_dir()), "")
        missing = self._config.runtime_cgroup if not found else ""
        self._runtime_problem = f"traffic.runtimeCgroup: this node has no group {missing}" if missing else ""
        return found

    def _cache_shares(self, found: Wanted, jobs_before: Sequence[CacheJob]) -> dict[str, Sequence[Share]]:
        if not self._config.data_cache.socket or self._config.data_cache.marks:
            return {}
        shares = cache_shares(self._pods.values(), jobs_before, self._cache_jobs)
        ours = (self._setup.namespace, CACHE_DAEMON_SET)
        return {subject: shares for subject, owner in found.owners.items() if (owner.namespace, owner.job) == ours}

    def _page(self) -> bytes:
        taken_s, moment_s = self.report.taken_s, self._measured_s
        age_s = time.monotonic() - moment_s if moment_s is not None else max(0.0, time.time() - taken_s)
        return msgspec.json.encode(msgspec.structs.replace(self.report, age_s=age_s if taken_s else 0.0))

    def _show(self) -> None:
        """Show what is committed."""
        ledger, meter = self._ledger, self._meter
        if ledger is None or not ledger.committed.instance:
            self.report = msgspec.structs.replace(self.report, problems=(self._problem,) if self._problem else ())
            self._exporter.update(View(failures=self._failures, damaged=ledger is not None and bool(ledger.damage)))
            return
        state, before = ledger.committed, self._before
        nic = nic_of(state)
        compared = before is not None and before.instance and before is not state
        self.report = TrafficReport(
            node=self._setup.node,
            node_uid=self._setup.node_uid(),
            ledger_id=state.ledger_id,
            taken_s=state.taken_s,
            interval_s=self._interval_s if compared else 0.0,
            rows=state.rows,
            previous=before.rows if before is not None and compared else (),
            nic=nic,
            nic_previous=nic_of(before) if before is not None and compared else nic,
            interfaces=tuple(each.name for each in state.interfaces),
            backend=self._backend.name if self._backend is not None else "",
            problems=tuple(
                filter(
                    None,
                    (
                        self._problem,
                        self._cache_problem,
                        self._runtime_problem,
                        _uncounted_text(self._uncounted),
                        "" if state.interfaces else _no_card(self._config.uplink_interfaces),
                    ),
                )
            ),
        )
        self._exporter.update(
            View(
                rows=self.report.accounts(),
                pods=_pod_rows(state) if self._config.pods else (),
                nic_in_bytes=nic.in_bytes,
                nic_out_bytes=nic.out_bytes,
                uncounted=len(self._uncounted),
                failures=self._failures,
                lost=self._lost + (meter.lost if meter is not None else 0),
                damaged=bool(ledger.damage),
            )
        )


def _locked(folder: Path) -> int:
    """Lock this folder for this process: two agents would overwrite each other's ledger. Returns the descriptor.

    Raises:
        OSError: another agent has it.
    """
    try:
        return lock_file(folder / LOCK)
    except BlockingIOError:
        raise OSError(f"another network agent uses {folder}: this one counts once that one has ended") from None


def _as_interface(port: RdmaPort) -> Interface:
    name = f"{port.device}/{port.port}"
    return Interface(name, port.received.bytes, port.sent.bytes, port.received.packets, port.sent.packets)


def _pod_rows(state: LedgerState) -> tuple[PodRow, ...]:
    """The bytes of pods. One that is there twice, with two addresses or recreated, has one row: no series repeats."""
    sizes: Counter[tuple[str, str, str, str, str]] = Counter()
    for each in state.pods:
        owner = state.owners.get(each.subject)
        if owner is not None and owner.pod:
            sizes[owner.namespace, owner.pod, owner.job, each.cls, each.direction] += each.bytes
    return tuple(PodRow(*key, size) for key, size in sizes.items())


def _no_card(named: Sequence[str]) -> str:
    if not named:
        return NO_CARD
    return f"this node has none of traffic.uplinkInterfaces ({', '.join(named)}): write names that `ip link` shows"


def _uncounted_text(pods: Sequence[str]) -> str:
    if not pods:
        return ""
    names = ", ".join(pods[:3]) + (f" and {len(pods) - 3} more" if len(pods) > 3 else "")
    return f"host-network pods without a cgroup of their own count as the host: {names}"
