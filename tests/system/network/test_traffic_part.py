"""The part `traffic` on the kernel of a node that is in trouble: what it reports, and what its metrics say."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry

from muster.network.agent.part import HostPaths
from muster.network.config import parse_config
from muster.network.localpods.pod import LocalPod
from muster.network.traffic.backend import BackendError
from muster.network.traffic.part import TrafficPart
from tests.support.networknamespaces import Network, Node, need_namespaces
from tests.support.networkparts import NoPods, part_setup
from tests.support.trafficbackends import INTERNET4, datagrams
from tests.support.unifiedgroups import send_from_group, unified_group

CONFIG = {"enabled": True, "backend": "nftables", "uplinkInterfaces": ["eth0"], "periodSeconds": 0.2, "pods": True}
_TRIES = 500


class Pods(NoPods):
    """These pods."""

    def __init__(self, *pods: LocalPod) -> None:
        self._pods = {each.uid: each for each in pods}

    @property
    def pods(self) -> Mapping[str, LocalPod]:
        return self._pods

    def cgroups(self, pod: LocalPod) -> tuple[str, ...]:
        return (pod.cgroup_uid,) if pod.cgroup_uid else ()


def pod(uid: str, number: int, **more: Any) -> LocalPod:
    fields = {"name": "p", "addresses": Node.addresses(number), **more}
    return LocalPod(namespace="ns", uid=uid, job="train", phase="Running", **fields)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    need_namespaces("nft")
    with Network() as network:
        yield network.node(pods=2)


class Site:
    """The part on a node, and what it shows."""

    def __init__(self, node: Node, folder: Path, *pods: LocalPod, sys: Path = Path("/sys"), **config: Any) -> None:
        self.node = node
        self.registry = CollectorRegistry()
        pages: dict[str, Callable[[], bytes]] = {}
        setup = part_setup(HostPaths(state=folder, sys=sys), pages.__setitem__)
        section = parse_config(json.dumps({"traffic": {**CONFIG, **config}})).traffic
        self.part = TrafficPart(replace(setup, pods=Pods(*pods), registry=self.registry), section)
        self._page = pages["traffic"]

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._page())
        return found

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    def until(self, reached: Callable[[], bool]) -> None:
        """Run the part until this holds."""

        async def work() -> None:
            working = asyncio.create_task(self.part.run())
            for _ in range(_TRIES):
                await asyncio.sleep(0.1)
                if working.done() or reached():
                    break
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working

        self.node.host.call(asyncio.run, work())
        assert reached(), self.report


def test_missing_links_and_groups_of_the_configuration_are_problems(node: Node, tmp_path: Path) -> None:
    site = Site(node, tmp_path, pod("u", 0), uplinkInterfaces=["eth8", "eth9"], runtimeCgroup="none.slice")
    site.until(lambda: bool(site.report["taken_s"]))
    assert site.report["problems"] == [
        "traffic.runtimeCgroup: this node has no group none.slice",
        "this node has none of traffic.uplinkInterfaces (eth8, eth9): write names that `ip link` shows",
    ]


def test_node_without_a_network_card_is_warned_about_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    need_namespaces("nft")
    with Network() as network:
        node = network.node(pods=0)
        for family in ("-4", "-6"):
            node.host.run("ip", family, "route", "flush", "default")
        site = Site(node, tmp_path / "state", sys=tmp_path, uplinkInterfaces=[])
        site.until(lambda: bool(site.report["taken_s"]))
    warned = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert any("counting with nftables at no network card" in each for each in warned)
    assert any("name them in traffic.uplinkInterfaces" in each for each in site.report["problems"])


def test_failures_are_counted_while_there_is_no_ledger_yet(node: Node, tmp_path: Path) -> None:
    (tmp_path / "traffic").write_text("a file where the folder belongs")
    site = Site(node, tmp_path)
    site.until(lambda: site.metric("muster_network_traffic_failures_total") >= 2)
    assert "traffic" in site.report["problems"][0]


def test_totals_are_shown_while_the_kernel_refuses_after_a_restart(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Site(node, tmp_path, pod("u", 0))

    def counted() -> bool:
        if first.report["taken_s"]:
            datagrams(node.pods[0], node.outside, "192.0.2.2", 1)
        return first.metric("muster_network_bytes_total", **row("internet", "out")) > 0

    first.until(counted)
    missing = BackendError("nft is missing")
    monkeypatch.setattr("muster.network.traffic.backends.nftables.run_program", Mock(side_effect=missing))
    second = Site(node, tmp_path, pod("u", 0))
    second.until(lambda: second.metric("muster_network_bytes_total", **row("internet", "out")) > 0)
    assert "nft is missing" in second.report["problems"][0]


def row(cls: str, direction: str) -> dict[str, str]:
    return {"job": "train", "namespace": "ns", "team": "(none)", "class": cls, "direction": direction}


def test_rates_do_not_depend_on_the_clock_of_the_node(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(node, tmp_path, pod("u", 0))
    clock_s = time.time()
    jumps = iter((clock_s, clock_s + 1e9))
    monkeypatch.setattr("muster.network.traffic.part.time.time", lambda: next(jumps, clock_s - 1e9))
    intervals: set[float] = set()
    site.until(lambda: intervals.add(site.report["interval_s"]) or len(intervals) > 4)
    assert max(intervals) < 100
    assert site.report["age_s"] < 100


def test_recreated_pod_has_one_series(node: Node, tmp_path: Path) -> None:
    """While the kernel refuses a change, the ledger has both. Prometheus refuses a page with a series twice."""
    site = Site(node, tmp_path, pod("old", 0), pod("new", 1))
    site.until(lambda: len(series(site)) > 0)
    assert len(series(site)) == len(set(series(site)))


def test_kubernetes_104647_interfaces_of_the_node_add_no_series_to_its_host_network_pods(tmp_path: Path) -> None:
    """The kubelet shows each interface of the node for each pod on its network: 30 pods had 900 series."""
    with unified_group() as groups, Network() as network:
        node = network.node()
        node.outside_address(INTERNET4)
        pods = []
        for number in range(30):
            group = groups / f"pod{number}"
            group.mkdir()
            pods.append(pod(f"u{number}", 0, name=f"p{number}", host_network=True, cgroup_uid=str(group)))
        site = Site(node, tmp_path, *pods)
        site.until(lambda: bool(site.report["taken_s"]))
        sent = sum(send_from_group(groups / f"pod{each}", node.host, node.outside, INTERNET4, 1) for each in (3, 4))
        site.until(lambda: site.metric("muster_network_bytes_total", **row("internet", "out")) >= sent)
        for number in range(15):
            node.host.run("ip", "link", "add", f"cali{number}", "type", "veth", "peer", "name", f"peer{number}")
        taken_s = site.report["taken_s"]
        site.until(lambda: site.report["taken_s"] > taken_s)
        assert len(series(site)) == len(set(series(site))) == 30 * 2 * 2  # two classes, two directions
        assert site.metric("muster_network_bytes_total", **row("internet", "out")) == sent


def test_second_agent_waits_for_the_end_of_the_first(node: Node, tmp_path: Path) -> None:
    folder = tmp_path / "traffic"
    folder.mkdir()
    site = Site(node, tmp_path, pod("u", 0))
    with (folder / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        site.until(lambda: any("another network agent uses" in each for each in site.report["problems"]))
        assert not (folder / "ledger.json").exists()
    site.until(lambda: bool(site.report["taken_s"]))
    with (folder / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def series(site: Site) -> list[tuple[str, ...]]:
    samples = (each for metric in site.registry.collect() for each in metric.samples)
    return [tuple(each.labels.values()) for each in samples if each.name == "muster_network_pod_bytes_total"]
