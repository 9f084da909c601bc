"""Which pods have queues, which are policed, and what the node's sum is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from muster.api.configtext import ConfigTextError
from muster.network.config import parse_config
from muster.network.localpods.pod import LocalPod
from muster.network.shaping.config import hub_address
from muster.network.shaping.node import NodeLimiter
from muster.network.shaping.part import covered, line_rate
from muster.network.shaping.queues import BURST_MAX_BYTES, BURST_MIN_BYTES, BURST_NS, FLOOR_BPS, burst_ns
from muster.network.shaping.shaper import PodUse, Shaper
from muster.network.traffic.classes import Classes
from muster.network.uplink.wire import Pair

MEGA = 1_000_000


class Queues:
    attached = frozenset({"veth1"})
    refused: Mapping[str, str] = {"veth2": "another program has filters"}

    def apply(self, limits: Mapping[str, Pair | None], rest: Pair, addresses: Mapping[str, Iterable[str]]) -> Pair:
        self.limits, self.rest = limits, rest
        pairs = [*(each for each in limits.values() if each is not None), rest]
        return Pair(sum(each.in_bps for each in pairs), sum(each.out_bps for each in pairs))


class Groups:
    def apply(self, limits: Mapping[str, Pair | None], folders: Mapping[str, tuple[str, ...]]) -> None:
        self.limits, self.folders = limits, folders

    def can_police(self, folders: Iterable[str]) -> bool:
        return any(each.startswith("unified/") for each in folders)

    def measure(self) -> dict[str, PodUse]:
        return {}

    def teardown(self) -> None:
        return


class Pods:
    pods: Mapping[str, LocalPod] = {}
    revision = 1

    async def changed(self, revision: int) -> int:
        raise NotImplementedError

    def cgroups(self, pod: LocalPod) -> tuple[str, ...]:
        return () if pod.uid == "gone" else ("memory/x",) if pod.uid == "legacy" else (f"unified/{pod.uid}",)

    def host_interface(self, pod: LocalPod) -> str:
        return {"plain": "veth1", "refused": "veth2", "netkit": "nk3"}.get(pod.uid, "")


def pods(*uids: str) -> dict[str, LocalPod]:
    hosts = ("host", "gone", "legacy")
    return {uid: LocalPod(namespace="d", name=uid, uid=uid, host_network=uid in hosts) for uid in uids}


def test_pod_without_queues_is_policed_and_the_sum_of_the_node_stays() -> None:
    queues, groups = Queues(), Groups()
    limiter = NodeLimiter(cast(Shaper, queues), groups, Pods())
    limits: dict[str, Pair | None] = dict.fromkeys(("plain", "unknown", "refused"), Pair(4 * MEGA, 2 * MEGA))
    limits |= {"netkit": None, "host": None}
    total = limiter.apply(limits, Pair(9 * MEGA, 6 * MEGA), pods(*limits))
    assert set(queues.limits) == {"plain", "unknown"}
    assert limiter.state()["unknownLink"] == ("unknown",)
    assert groups.limits == {
        "refused": Pair(4 * MEGA, 2 * MEGA),
        "netkit": Pair(3 * MEGA, 2 * MEGA),
        "host": Pair(3 * MEGA, 2 * MEGA),
    }
    assert queues.rest == Pair(3 * MEGA, 2 * MEGA)
    assert total == Pair(3 * 4 * MEGA + 9 * MEGA, 3 * 2 * MEGA + 6 * MEGA)


def test_pod_that_cannot_be_limited_is_named_and_takes_nothing_of_the_rest() -> None:
    queues = Queues()
    limiter = NodeLimiter(cast(Shaper, queues), Groups(), Pods())
    limiter.apply(dict.fromkeys(("gone", "legacy", "plain")), Pair(2, 2), pods("gone", "legacy", "plain"))
    assert limiter.state()["unlimited"] == ("gone", "legacy")
    assert queues.rest == Pair(2, 2)


def test_without_policing_host_network_pods_are_named_as_not_limited() -> None:
    queues = Queues()
    limiter = NodeLimiter(cast(Shaper, queues), None, Pods())
    total = limiter.apply({"host": Pair(1, 1), "plain": Pair(5, 5)}, Pair(2, 2), pods("host", "plain"))
    assert limiter.state()["unlimited"] == ("host",)
    assert total == Pair(7, 7)


@pytest.mark.parametrize("rate_bps", [FLOOR_BPS, 10**6, 10**8, 10**10, 4 * 10**11])
def test_burst_is_bounded_at_every_rate(rate_bps: int) -> None:
    size = burst_ns(rate_bps) * rate_bps / 8 / 1e9
    assert size <= BURST_MAX_BYTES
    assert size <= max(BURST_MIN_BYTES, BURST_NS * rate_bps / 8 / 1e9) + 1
    assert 0 < burst_ns(rate_bps) // 64 < 2**32


def test_class_of_the_budget_covers_its_prefixes_only() -> None:
    classes = Classes(("10.0.0.0/8",), {"store": ("10.9.0.0/16", "2001:db8::/32")})
    internet, store = covered(classes, "internet"), covered(classes, "store")

    def says(table: Mapping[Any, bool], address: str) -> bool:
        import ipaddress

        parsed = ipaddress.ip_address(address)
        holding = [net for net in table if net.version == parsed.version and parsed in net]
        return table[max(holding, key=lambda net: net.prefixlen)]

    for address, of_internet, of_store in (
        ("10.1.0.1", False, False),
        ("10.9.0.1", False, True),
        ("2001:db8::1", False, True),
        ("8.8.8.8", True, False),
        ("2600::1", True, False),
        ("169.254.169.254", False, False),
    ):
        assert (says(internet, address), says(store, address)) == (of_internet, of_store), address


@pytest.mark.parametrize(
    ("speeds", "want"),
    [
        (("25000",), 25_000 * MEGA),
        (("10000", "10000"), 20_000 * MEGA),
        (("-1",), 7),
        (("10000", "-1"), 7),
        ((), 7),
        (("",), 7),
    ],
)
def test_line_rate_is_the_sum_of_the_uplinks_or_the_configured_one(
    tmp_path: Path, speeds: tuple[str, ...], want: int
) -> None:
    for number, speed in enumerate(speeds):
        (tmp_path / f"class/net/eth{number}").mkdir(parents=True)
        (tmp_path / f"class/net/eth{number}/speed").write_text(speed + "\n")
    assert line_rate(tmp_path, [f"eth{number}" for number in range(len(speeds))], Pair(7, 7)) == Pair(want, want)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("shaping: {enabled: true}", "would stay at their static share; set uplink.enabled: true"),
        ("uplink: {enabled: true, budget: {in: 1G, out: 1G}, class: shop}", "'shop' is not a class of traffic"),
        ("shaping: {interfaces: []}", "no link would be limited"),
        ("shaping: {reserved: {ports: [70000]}}", "70000"),
        ("shaping: {reserved: {addresses: [10.0.0.1/8]}}", "10.0.0.1/8 has host bits set"),
        ("shaping: {reserved: {in: 1k}}", "1000 is too low; write 256000 or more"),
        ("shaping: {hub: {address: hub}}", "write host:port"),
        ("shaping: {dryrun: true}", "dryrun"),
    ],
)
def test_bad_configuration_says_what_to_change(text: str, what: str) -> None:
    with pytest.raises(ConfigTextError, match=what):
        parse_config(text)


def test_hub_is_found_by_its_service_or_its_address() -> None:
    assert hub_address(parse_config("").shaping, "muster") == ("muster-network-hub.muster.svc", 9446)
    given = parse_config("shaping: {hub: {address: '[2001:db8::1]:9000'}}").shaping
    assert hub_address(given, "muster") == ("2001:db8::1", 9000)
