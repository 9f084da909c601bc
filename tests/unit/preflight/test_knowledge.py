"""What is known of nodes by events: who uses them, who waits for fresh tests, what their agents say."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.node_health import NodeHealth
from muster.fleet.preflight.cache import Knowledge
from muster.fleet.preflight.config import parse_config
from muster.fleet.preflight.snapshot import PreflightNode
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import from_dict

CONFIG = parse_config("image: a\ntolerations: [{key: sku, value: gpu}]")
WITHIN = "muster.dev/tested-within-hours"


def node(*taints: str, ready: str = "True", **spec: Any) -> Node:
    keys = [text.partition("=") for text in taints]
    return from_dict(
        {
            "metadata": {"name": "n", "uid": "u", "labels": {"nvidia.com/gpu.present": "true"}},
            "spec": {
                "taints": [{"key": key, "value": value, "effect": "NoSchedule"} for key, _, value in keys],
                **spec,
            },
            "status": {
                "allocatable": {"nvidia.com/gpu": "8", "cpu": "9"},
                "conditions": [{"type": "Ready", "status": ready}],
                "nodeInfo": {"bootID": "b"},
            },
        },
        Node,
    )


def pod(
    uid: str, where: str = "", *, namespace: str = "work", within: str = "", labels: Any = None, **limits: str
) -> Pod:
    asked = {name.replace("_", "/"): amount for name, amount in limits.items()}
    return from_dict(
        {
            "metadata": {
                "name": uid,
                "namespace": namespace,
                "uid": uid,
                "labels": labels or {},
                "annotations": {WITHIN: within} if within else {},
            },
            "spec": {"nodeName": where, "containers": [{"name": "c", "resources": {"limits": asked}}]},
            "status": {"phase": "Running" if where else "Pending"},
        },
        Pod,
    )


def known(*pods: Pod) -> Knowledge:
    made = Knowledge("muster-system", "muster.dev/team")
    made.node_changed(None, node())
    for each in pods:
        made.pod_changed(None, each)
    return made


def seen(made: Knowledge) -> PreflightNode:
    return made.view(CONFIG).nodes["n"]


def test_a_node_is_in_use_by_pods_with_devices_and_not_by_others_nor_by_its_test() -> None:
    test = pod("t", "n", namespace="muster-system", labels={"muster.dev/preflight": "1"}, **{"nvidia.com_gpu": "8"})
    made = known(pod("plain", "n", cpu="4"), test)
    assert not seen(made).busy
    user = pod("user", "n", **{"nvidia.com_gpu": "1"})
    assert made.pod_changed(None, user)
    assert seen(made).busy
    made.pod_changed(user, None)
    assert not seen(made).busy


def test_pods_that_only_look_like_tests_are_work() -> None:
    assert seen(known(pod("x", "n", labels={"muster.dev/preflight": "1"}, **{"nvidia.com_gpu": "1"}))).busy


def test_the_shortest_wish_of_those_that_wait_counts_and_nonsense_is_none() -> None:
    wishes = ["48", "24", "²", "0", "-3", "99999999999", "soon"]
    made = known(*(pod(f"p{number}", within=text) for number, text in enumerate(wishes)), pod("runs", "n", within="2"))
    assert made.view(CONFIG).wanted_within_h == 24
    made.pod_changed(pod("p1", within="24"), None)
    assert made.view(CONFIG).wanted_within_h == 48


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (node(ready="False"), "is not ready"),
        (node(unschedulable=True), "is cordoned"),
        (node("muster.dev/joining=pending"), "has taint muster.dev/joining"),
        (node("node.kubernetes.io/unreachable"), "has taint node.kubernetes.io/unreachable"),
        (node("sku=cpu"), "has taint sku"),
        (node("sku=gpu", "muster.dev/quarantine=true", "muster.dev/preflight=pending", "muster.dev/team=red"), ""),
        (node("muster.dev/pool=h200", "nvidia.com/gpu=present"), ""),
    ],
)
def test_tests_run_only_where_nothing_but_our_own_taints_and_those_for_good_are_in_the_way(
    changed: Node, why: str
) -> None:
    made = known()
    made.node_changed(node(), changed)
    assert seen(made).held == why


def test_report_of_another_boot_does_not_count_for_this_one() -> None:
    made = known()

    def says(boot: str) -> NodeHealth:
        at = "2026-01-01T00:00:00Z"
        finding = {"check": "xid", "component": "", "code": "79", "firstTime": at, "lastTime": at}
        status = {"nodeUID": "u", "bootID": boot, "driver": "570", "findings": [finding]}
        return from_dict({"metadata": {"name": "n"}, "status": status}, NodeHealth)

    made.health_changed(None, says("before"))
    assert (seen(made).agent_driver, seen(made).found_at) == ("", 0.0)
    made.health_changed(says("before"), says("b"))
    assert seen(made).agent_driver == "570"
    assert seen(made).found_at > 0


def test_that_its_agent_does_not_reach_others_speaks_not_against_a_node() -> None:
    """It is reported again as long as they are away; a node in quarantine would never be tested more thoroughly."""
    made = known()
    at = "2026-01-01T00:00:00Z"
    finding = {"check": "reach", "component": "other", "code": "unreached", "firstTime": at, "lastTime": at}
    status = {"nodeUID": "u", "bootID": "b", "findings": [finding]}
    made.health_changed(None, from_dict({"metadata": {"name": "n"}, "status": status}, NodeHealth))
    assert seen(made).found_at == 0.0
