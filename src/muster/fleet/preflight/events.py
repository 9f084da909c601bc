"""Writes Events about tests on their nodes."""

from __future__ import annotations

import logging

from muster.api.preflight import PreflightSpec
from muster.fleet.preflight.snapshot import TestView
from muster.kube.events import NORMAL, WARNING, EventRecorder
from muster.kube.objects.core import ObjectReference

log = logging.getLogger(__name__)

REFUSED = "PreflightRefused"
INCONCLUSIVE = "PreflightInconclusive"
"""Reasons of Events on nodes, which programs outside Muster read."""


class Teller:
    """Reports the results of tests."""

    def __init__(self, events: EventRecorder) -> None:
        self._events = events

    def ended(self, name: str, spec: PreflightSpec) -> None:
        """Report the result of a test."""
        if spec.passed:
            self._event(name, spec.node_uid, NORMAL, "PreflightPassed", f"passed its test of level {spec.level}")
            return
        found = "; ".join(f"{each.code}{f' on {each.gpu}' * bool(each.gpu)}: {each.message}" for each in spec.failures)
        log.warning("preflight: node %s failed its test of level %d: %s", name, spec.level, found)
        said = f"failed its test of level {spec.level}: {found}"
        self._event(name, spec.node_uid, WARNING, "PreflightFailed", said)

    def inconclusive(self, test: TestView, why: str) -> None:
        """Report a test without a result."""
        said = f"its test of level {test.level} says nothing of it: {why}"
        self._event(test.node, test.identity.node_uid, WARNING, INCONCLUSIVE, said)

    def refused(self, name: str, uid: str, why: str) -> None:
        """Report that a test could not be created."""
        self._event(name, uid, WARNING, REFUSED, f"its test cannot be made: {why}")

    def revoked(self, name: str, record: PreflightSpec) -> None:
        """Report that a record was revoked because the driver has changed."""
        said = f"it has another driver than when it was tested ({record.driver}): not trusted until tested again"
        self._event(name, record.node_uid, WARNING, "PreflightRevoked", said)

    def outlying(self, name: str, uid: str, gpu: str, figures: list[str]) -> None:
        """Report a GPU that is slower than others of its model."""
        said = f"GPU {gpu} is slower than others of its model: {'; '.join(figures)}"
        self._event(name, uid, WARNING, "PreflightOutlier", said)

    def _event(self, name: str, uid: str, type_: str, reason: str, said: str) -> None:
        about = ObjectReference(api_version="v1", kind="Node", name=name, uid=uid)
        self._events.event(about, type_, reason, said)
