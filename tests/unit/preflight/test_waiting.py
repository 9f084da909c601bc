"""Why a node has not been tested, in words that say what to do about it."""

from __future__ import annotations

from typing import Any

import pytest

from muster.fleet.preflight import testpod
from muster.fleet.preflight.config import PreflightConfig
from muster.fleet.preflight.why_untested import Surroundings, why_not_tested
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import from_dict

CONFIG = PreflightConfig(image="tests:1", at_once=3)


def node(gpus: str = "8", *taints: str) -> Node:
    spec = {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]}
    status = {"allocatable": {"nvidia.com/gpu": gpus}}
    return from_dict({"metadata": {"name": "a", "uid": "uid-a"}, "spec": spec, "status": status}, Node)


def made(place: str = "a", state: dict[str, Any] | None = None, **status: Any) -> Pod:
    """A test of level 1, and what its kubelet says."""
    pod = testpod.manifest(
        testpod.TestRecord("a", "uid-a", "boot-1", 1, "nvidia"),
        8,
        CONFIG,
        namespace="muster-system",
        image="none",
        team_key="muster.dev/team",
        retest=False,
    )
    pod["spec"]["nodeName"] = place
    if state is not None:
        status["containerStatuses"] = [{"name": "test", "state": state}]
    return from_dict({**pod, "status": {"phase": "Pending", **status}}, Pod)


def why(of: Node | None = None, config: PreflightConfig | None = CONFIG, **beside: Any) -> str:
    return why_not_tested(of or node(), Surroundings(config=config, team_key="muster.dev/team", **beside))


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


@pytest.mark.parametrize(
    ("pod", "place", "said"),
    [
        (
            made(state=waiting("ImagePullBackOff", "Back-off pulling image")),
            "",
            "its test of level 1 cannot start, image tests:1 is not pulled: ImagePullBackOff: Back-off pulling image",
        ),
        (
            made(state=waiting("CreateContainerConfigError", "container has runAsNonRoot")),
            "",
            "its test of level 1 cannot start: CreateContainerConfigError: container has runAsNonRoot",
        ),
        (made(state=waiting("ContainerCreating")), "", "is being started: its image may still be pulled"),
        (made(state={"running": {"startedAt": "2026-01-01T00:00:00Z"}}), "", "its test of level 1 is running"),
        (made(""), "1 node lacks cpu", "its test of level 1 waits for a place: 1 node lacks cpu"),
        (
            made("", conditions=[{"type": "PodScheduled", "status": "False", "message": "asks too much"}]),
            "",
            "waits for a place: asks too much",
        ),
        (made("", phase="Failed"), "", "has ended and is about to be judged"),
    ],
)
def test_reason_why_a_test_waits_is_reported(pod: Pod, place: str, said: str) -> None:
    assert said in why(pod=pod, place=place, refused="an older word")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (why(), ""),
        (why(config=None), "nodes are not tested here: health.preflight.enabled"),
        (why(config=None, broken=True), "preflight.yaml cannot be used (muster health says why)"),
        (why(node("0")), "its device plugin announces no nvidia.com/gpu"),
        (why(in_use=True), "it is tested when what uses it has ended"),
        (why(node("8", "acme.com/gpus")), "tests do not tolerate its taint acme.com/gpus"),
        (why(node("8", "muster.dev/preflight", "nvidia.com/gpu", "muster.dev/team")), ""),
        (why(refused="its test cannot be made: no PriorityClass"), "its test cannot be made: no PriorityClass"),
        (why(running=3), "3 tests run, which is atOnce of preflight.yaml"),
        (why(inconclusive="it got no place in time"), "tried again later: it got no place in time"),
    ],
)
def test_why_no_test_is_there_is_said(found: str, said: str) -> None:
    assert said in found if said else found == ""
