"""Explains why a node has not been tested yet, as far as it can be seen from outside the controller."""

from __future__ import annotations

from typing import Final

import msgspec

from muster.api.trust import GPU
from muster.fleet.preflight.config import PreflightConfig
from muster.fleet.preflight.results import read_test
from muster.fleet.preflight.testpod import tolerations
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.objects.resources import allocatable
from muster.kube.objects.taints import find_untolerated_taint

_PULLING: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable"}
)
"""The kubelet's reasons if an image cannot be pulled (Kubernetes: Images, "ImagePullBackOff")."""
_BEGINNING: Final = frozenset({"", "ContainerCreating", "PodInitializing"})


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the cluster that matters for a node's test.

    Attributes:
        config: None without a configuration, or if the text is not valid.
        broken: the text is not valid.
        team_key: key of the taint of nodes that a team owns.
        pod: the node's test; None without one.
        place: what the scheduler reports for a pod without a node.
        refused: why the API server recently refused the test.
        inconclusive: the report of the previous test.
        running: number of tests on all nodes that have not ended, without those of idle nodes.
        in_use: other pods use its GPUs.
    """

    config: PreflightConfig | None = None
    broken: bool = False
    team_key: str
    pod: Pod | None = None
    place: str = ""
    refused: str = ""
    inconclusive: str = ""
    running: int = 0
    in_use: bool = False


def why_not_tested(node: Node, beside: Surroundings) -> str:
    """Return what its test does or waits for; "" if no obstacle is known."""
    if beside.pod is not None:
        return _of_test(beside.pod, beside.place)
    if beside.config is None:
        if beside.broken:
            return "tests are not begun: preflight.yaml cannot be used (muster health says why)"
        return "nodes are not tested here: health.preflight.enabled is not set"
    if not allocatable(node).get(GPU):
        return f"its device plugin announces no {GPU}, which a test takes"
    if beside.in_use:
        return "it is tested when what uses it has ended"
    taint = find_untolerated_taint(node.spec.taints, tolerations(beside.config, beside.team_key))
    if taint is not None:
        return f"tests do not tolerate its taint {taint.key}: wait, or name it in tolerations of preflight.yaml"
    if beside.refused:
        return beside.refused
    if beside.running >= beside.config.at_once:
        return f"{beside.running} tests run, which is atOnce of preflight.yaml"
    return f"tried again later: {beside.inconclusive}" if beside.inconclusive else ""


def _of_test(pod: Pod, place: str) -> str:
    test = read_test(pod)
    level = f"its test of level {test.level}" if test is not None else "its test"
    if pod.terminating:
        return f"{level} is being taken back"
    if pod.finished:
        return f"{level} has ended and is about to be judged"
    if not pod.spec.node_name:
        return f"{level} waits for a place: {place or _condition(pod) or 'the scheduler has not said why'}"
    if test is not None and test.started_at:
        return f"{level} is running"
    for status in pod.status.container_statuses:
        waiting = status.state.waiting if status.state is not None else None
        if waiting is None or waiting.reason in _BEGINNING:
            continue
        if waiting.reason in _PULLING:
            image = pod.spec.containers[0].image
            return f"{level} cannot start, image {image} is not pulled: {waiting.reason}: {waiting.message}"
        return f"{level} cannot start: {waiting.reason}: {waiting.message}"
    return f"{level} is being started: its image may still be pulled"


def _condition(pod: Pod) -> str:
    return next((each.message for each in pod.status.conditions if each.type == "PodScheduled" and each.message), "")
