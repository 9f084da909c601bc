"""The loop of a node, pass by pass, with the kernel and the hub of the test and a clock that the test moves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from muster.kube.progress import Progress
from muster.network.localpods.pod import LocalPod
from muster.network.shaping.enforcer import LOOP, REPAIR_S, Enforcer, Source, current
from muster.network.shaping.memory import Memory
from muster.network.shaping.metrics import ShapingMetrics
from muster.network.shaping.queues import Usage
from muster.network.shaping.shaper import RESERVED, REST, PodUse
from muster.network.uplink.wire import Pair, PodDemand, Rates
from tests.support.waiting import until

MEGA = 1_000_000
START = Pair(9 * MEGA, 3 * MEGA)
LINE = Pair(100 * MEGA, 100 * MEGA)


class Kernel:
    """What would be in the kernel."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.limits: Mapping[str, Pair | None] = {}
        self.rest = Pair(0, 0)
        self.use: dict[str, PodUse] = {}
        self.broken: OSError | None = None

    def _do(self, call: str) -> None:
        self.calls.append(call)
        if self.broken is not None:
            raise self.broken

    def setup(self, start: Pair) -> None:
        self._do(f"setup {start.in_bps // MEGA}")

    def refresh(self, *, only_new: bool) -> None:
        self._do("refresh")

    def apply(self, limits: Mapping[str, Pair | None], rest: Pair, pods: Mapping[str, LocalPod]) -> Pair:
        self._do("apply")
        self.limits, self.rest = limits, rest
        pairs = [*(each for each in limits.values() if each is not None), rest]
        return Pair(sum(each.in_bps for each in pairs), sum(each.out_bps for each in pairs))

    def count(self, pods: Mapping[str, LocalPod]) -> None:
        self._do("count")

    def measure(self) -> dict[str, PodUse]:
        self._do("measure")
        return {REST: PodUse(), RESERVED: PodUse(), **self.use}

    def teardown(self) -> None:
        self._do("teardown")

    def state(self) -> dict[str, Any]:
        return {}


class Hub:
    """The connection to the hub."""

    def __init__(self) -> None:
        self.rates: Rates | None = None
        self.lease_end_s = float("-inf")
        self.changed = asyncio.Event()
        self.problem = ""
        self.line = Pair(0, 0)
        self.pods: Mapping[str, PodDemand] = {}
        self.enforced: tuple[Rates | None, Pair] | None = None

    def report(self, line: Pair, pods: Mapping[str, PodDemand]) -> None:
        self.line, self.pods = line, pods

    def applied(self, rates: Rates | None, total: Pair) -> None:
        self.enforced = rates, total


class Pods:
    def __init__(self, *pods: LocalPod) -> None:
        self.pods: Mapping[str, LocalPod] = {pod.uid: pod for pod in pods}
        self.revision = 1

    async def changed(self, revision: int) -> int:
        raise NotImplementedError

    def cgroups(self, pod: LocalPod) -> tuple[str, ...]:
        return ()

    def host_interface(self, pod: LocalPod) -> str:
        return ""


class Setting:
    """An enforcer and what is around it."""

    def __init__(self, folder: Path, *pods: LocalPod, dry_run: bool = False, boot: str = "b1") -> None:
        self.kernel, self.hub, self.pods = Kernel(), Hub(), Pods(*pods)
        self.now = 1000.0
        self.folder = folder
        self.progress = Progress(clock=lambda: self.now)
        self.registry = CollectorRegistry()
        memory = Memory(folder / "limits", boot)
        self.hub.rates, self.hub.lease_end_s = memory.load()
        self.enforcer = Enforcer(
            self.kernel,
            self.hub,
            self.pods,
            start=START,
            dry_run=dry_run,
            line=lambda: LINE,
            memory=memory,
            progress=self.progress,
            metrics=ShapingMetrics(self.registry),
            kernel=self._call,
            clock=lambda: self.now,
        )

    async def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    async def passes(self, *moments: float) -> None:
        for moment in moments:
            self.now = moment
            await self.enforcer.once()

    def page(self) -> Any:
        return json.loads(self.enforcer.page())


def pod(uid: str, *addresses: str, **values: Any) -> LocalPod:
    return LocalPod(namespace="default", name=f"n-{uid}", uid=uid, addresses=addresses, phase="Running", **values)


def rates(seq: int = 1, *, dry_run: bool = False, **pods: tuple[int, int]) -> Rates:
    return Rates(
        seq=seq,
        epoch="e1",
        answers=1,
        valid_s=30.0,
        decay_s=60.0,
        pods={uid: Pair(each[0] * MEGA, each[1] * MEGA) for uid, each in pods.items()},
        rest=Pair(MEGA, MEGA),
        static=Pair(4 * MEGA, 4 * MEGA),
        dry_run=dry_run,
    )


def used(down_bytes: int, up_bytes: int = 0, *, drops: int = 0, backlog: int = 0, packets: int = 0) -> PodUse:
    return PodUse(
        Usage(down_bytes + 14 * packets, packets, drops, backlog),
        Usage(up_bytes + 14 * packets, packets, drops, backlog),
    )


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path, pod("a", "10.1.0.1"), pod("b", "10.1.0.2"))


async def test_new_node_shares_its_static_share_before_it_knows_a_hub(setting: Setting) -> None:
    await setting.passes(1000)
    assert setting.kernel.calls[0] == "setup 9"
    assert setting.kernel.limits == {"a": Pair(3 * MEGA, MEGA), "b": Pair(3 * MEGA, MEGA)}
    assert setting.hub.enforced == (None, START)
    assert setting.page()["source"] == Source.STATIC


async def test_limits_of_the_hub_are_enforced_and_confirmed(setting: Setting) -> None:
    setting.hub.rates, setting.hub.lease_end_s = rates(a=(20, 10)), 1030.0
    await setting.passes(1000)
    assert setting.kernel.limits == {"a": Pair(20 * MEGA, 10 * MEGA), "b": None}
    assert setting.kernel.rest == Pair(MEGA, MEGA)
    assert setting.hub.enforced == (setting.hub.rates, Pair(21 * MEGA, 11 * MEGA))
    assert setting.page()["source"] == Source.LEASE


async def test_unchanged_limits_are_not_applied_again(setting: Setting) -> None:
    setting.hub.rates, setting.hub.lease_end_s = rates(a=(20, 10)), 1030.0
    await setting.passes(1000, 1001, 1002)
    assert setting.kernel.calls.count("apply") == 1


async def test_limits_stay_until_the_lease_ends_then_fall_to_the_static_share(setting: Setting) -> None:
    setting.hub.rates, setting.hub.lease_end_s = rates(a=(19, 19)), 1010.0
    await setting.passes(1000)
    setting.hub.problem = "gone"
    totals = []
    for moment in (1009, 1011, 1040, 1069, 1071, 1105):
        await setting.passes(moment)
        assert setting.hub.enforced is not None
        totals.append(setting.hub.enforced[1].in_bps)
    assert totals[0] == 20 * MEGA
    assert totals == sorted(totals, reverse=True)
    assert totals[2] == pytest.approx(12 * MEGA, rel=0.01)
    assert totals[-2:] == [4 * MEGA, 4 * MEGA - 1]
    assert setting.page()["source"] == Source.STATIC


async def test_restarted_agent_continues_the_decay_of_the_last_limits(setting: Setting) -> None:
    setting.hub.rates, setting.hub.lease_end_s = rates(a=(19, 19)), 1010.0
    await setting.passes(1000)
    second = Setting(setting.folder, *setting.pods.pods.values())
    await second.passes(1005)
    assert second.kernel.limits["a"] == Pair(19 * MEGA, 19 * MEGA)
    assert second.hub.enforced == (setting.hub.rates, Pair(20 * MEGA, 20 * MEGA))
    await second.passes(1040)
    assert second.hub.enforced is not None
    assert second.hub.enforced[1].in_bps == pytest.approx(12 * MEGA, rel=0.01)


@pytest.mark.parametrize("text", [b"", b"{", b"\x80"])
async def test_unreadable_memory_counts_as_none(setting: Setting, text: bytes) -> None:
    (setting.folder / "limits").write_bytes(text)
    second = Setting(setting.folder, pod("a", "10.1.0.1"))
    await second.passes(1000)
    assert second.hub.enforced == (None, START)


async def test_limits_of_an_earlier_boot_are_forgotten(setting: Setting) -> None:
    setting.hub.rates, setting.hub.lease_end_s = rates(a=(19, 19)), 1010.0
    await setting.passes(1000)
    second = Setting(setting.folder, pod("a", "10.1.0.1"), boot="b2")
    await second.passes(1000)
    assert second.page()["source"] == Source.STATIC
    assert second.kernel.calls[0] == "setup 9"


@pytest.mark.parametrize("asked_by", ["config", "hub"])
async def test_dry_run_measures_and_reports_and_limits_nothing(tmp_path: Path, asked_by: str) -> None:
    setting = Setting(tmp_path, pod("a", "10.1.0.1"), dry_run=asked_by == "config")
    if asked_by == "hub":
        setting.hub.rates, setting.hub.lease_end_s = rates(dry_run=True, a=(5, 5)), 2000.0
    setting.kernel.use = {"a": used(0)}
    await setting.passes(1000)
    setting.kernel.use = {"a": used(125_000)}
    await setting.passes(1001)
    assert setting.hub.pods["a"].used_in_bps == MEGA
    assert {call.split()[0] for call in setting.kernel.calls} == {"teardown", "count", "measure"}
    assert setting.kernel.calls.count("teardown") == 1
    assert setting.page()["source"] == Source.DRY_RUN


async def test_end_of_a_dry_run_begins_with_the_static_share_of_the_hub(setting: Setting) -> None:
    setting.hub.rates, setting.hub.lease_end_s = rates(dry_run=True), 2000.0
    await setting.passes(1000)
    setting.hub.rates = rates(2, a=(5, 5))
    await setting.passes(1001)
    assert setting.kernel.calls[-4:] == ["setup 4", "measure", "refresh", "apply"]
    assert setting.kernel.limits["a"] == Pair(5 * MEGA, 5 * MEGA)


async def test_demand_of_a_waiting_pod_is_the_line_rate_and_of_others_what_they_use(setting: Setting) -> None:
    setting.hub.rates, setting.hub.lease_end_s = rates(a=(8, 8), b=(8, 8)), 2000.0
    setting.kernel.use = {"a": used(0), "b": used(0)}
    await setting.passes(1000)
    setting.kernel.use = {"a": used(960_000, 100, backlog=9000, packets=10), "b": used(250_000, packets=10)}
    await setting.passes(1001)
    assert setting.hub.pods["a"].demand_in_bps == LINE.in_bps
    assert setting.hub.pods["a"].used_in_bps == 7_680_000
    assert setting.hub.pods["a"].demand_out_bps == 800  # its upload waits at far below its limit
    assert setting.hub.pods["b"] == PodDemand(2 * MEGA, 0, 2 * MEGA, 0)
    assert setting.hub.line == LINE
    assert REST not in setting.hub.pods


async def test_pod_whose_packet_waits_longer_than_a_pass_still_wants_more(setting: Setting) -> None:
    """At 1 Mbit/s, a packet of 64 KB from segmentation offload takes half a second: in some passes nothing is sent."""
    setting.hub.rates, setting.hub.lease_end_s = rates(a=(1, 1)), 2000.0
    setting.kernel.use = {"a": used(0)}
    await setting.passes(1000)
    setting.kernel.use = {"a": used(65_000, packets=44, backlog=65_000)}
    await setting.passes(1001)
    await setting.passes(1001.5)
    assert setting.hub.pods["a"].demand_in_bps == LINE.in_bps
    setting.kernel.use = {"a": used(130_000, packets=88)}
    await setting.passes(1002.5)
    await setting.passes(1003)
    assert "a" not in setting.hub.pods


async def test_use_counts_what_arrived_and_is_never_above_the_line_rate(setting: Setting) -> None:
    setting.kernel.use = {"a": used(0)}
    await setting.passes(1000)
    setting.kernel.use = {"a": used(500_000, packets=500, drops=500)}
    await setting.passes(1001)
    assert setting.hub.pods["a"].used_in_bps == 8 * MEGA
    setting.kernel.use = {"a": used(10**9, packets=600, drops=500)}
    await setting.passes(1002)
    assert setting.hub.pods["a"].used_in_bps == LINE.in_bps


async def test_counters_that_began_again_do_not_show_as_use(setting: Setting) -> None:
    setting.kernel.use = {"a": used(10**8, packets=10**5)}
    await setting.passes(1000)
    setting.kernel.use = {"a": used(1250, packets=1)}
    await setting.passes(1001)
    assert setting.hub.pods["a"].used_in_bps == 10_000
    await setting.passes(1002)
    assert setting.hub.pods == {}  # those without traffic have no rate of their own


async def test_pod_that_does_not_slow_down_is_named_after_5_s(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    for second in range(12):
        setting.kernel.use = {
            "a": used(1000 * second, packets=10 * second, drops=5 * second),
            "b": used(1000 * second, packets=100 * second, drops=second),
        }
        await setting.passes(1000 + second)
    assert caplog.text.count("does not slow down") == 1
    assert "default/n-a does not slow down" in caplog.text
    assert setting.page()["subjects"]["a"]["unresponsive"]
    assert not setting.page()["subjects"]["b"]["unresponsive"]
    assert setting.registry.get_sample_value("muster_network_uplink_unresponsive_pods") == 1


async def test_pod_that_is_gone_loses_its_limit(setting: Setting) -> None:
    setting.hub.rates, setting.hub.lease_end_s = rates(a=(8, 8), b=(8, 8)), 2000.0
    await setting.passes(1000)
    setting.pods.pods = {"a": setting.pods.pods["a"]}
    await setting.passes(1001)
    assert setting.kernel.limits == {"a": Pair(8 * MEGA, 8 * MEGA)}
    assert setting.hub.enforced is not None
    assert setting.hub.enforced[1] == Pair(9 * MEGA, 9 * MEGA)


async def test_changed_address_is_applied_although_limits_are_the_same(setting: Setting) -> None:
    setting.hub.rates, setting.hub.lease_end_s = rates(a=(8, 8)), 2000.0
    await setting.passes(1000)
    setting.pods.pods = {**setting.pods.pods, "a": pod("a", "10.1.0.9", "fd00::9")}
    await setting.passes(1001)
    assert setting.kernel.calls.count("apply") == 2


async def test_state_of_the_kernel_is_repaired_from_time_to_time(setting: Setting) -> None:
    await setting.passes(1000, 1001, 1000 + REPAIR_S, 1001 + REPAIR_S)
    assert [call for call in setting.kernel.calls if call.startswith(("setup", "apply"))] == [
        *("setup 9", "apply"),
        *("setup 9", "apply"),
    ]


async def test_kernel_that_refuses_is_asked_again_and_limits_stay(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    setting.hub.rates, setting.hub.lease_end_s = rates(a=(8, 8)), 2000.0
    setting.kernel.broken = OSError(1, "set the limits: Operation not permitted")
    running = asyncio.create_task(setting.enforcer.run())
    setting.hub.changed.set()
    await until("it was refused", lambda: setting.page()["problem"])
    assert setting.registry.get_sample_value("muster_network_uplink_errors_total") >= 1
    assert "the last ones stay" in caplog.text
    assert "not permitted" in setting.page()["problem"]
    assert setting.progress.age_s(LOOP) == 0
    setting.kernel.broken = None
    setting.hub.changed.set()
    await until("it is not refused", lambda: setting.page()["problem"] == "")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert setting.kernel.limits["a"] == Pair(8 * MEGA, 8 * MEGA)


async def test_new_link_is_limited_only_while_limits_are_enforced(setting: Setting) -> None:
    await setting.enforcer.links_changed()
    assert setting.kernel.calls == []
    await setting.passes(1000)
    before = setting.kernel.calls.count("refresh")
    await setting.enforcer.links_changed()
    assert setting.kernel.calls.count("refresh") == before + 1


def test_address_belongs_to_the_newest_pod_and_ended_pods_have_none() -> None:
    old, new = pod("old", "10.1.0.1", created_s=1), pod("new", "10.1.0.1", created_s=2)
    ended = LocalPod(namespace="d", name="x", uid="ended", addresses=("10.1.0.2",), phase="Succeeded", created_s=3)
    hosts = [pod(f"h{n}", "192.0.2.1", host_network=True) for n in range(2)]
    assert set(current([old, new, ended, *hosts])) == {"new", "h0", "h1"}
