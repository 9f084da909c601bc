"""Operators who take nodes out of use and let them back, as `muster nodes quarantine` and `release` do."""

from __future__ import annotations

import contextlib

from fuzz.health.agents import moment
from fuzz.health.facts import HealthFacts
from fuzz.health.mishaps import Plea
from fuzz.health.ward import Ward
from muster.api.names import remediation_name
from muster.kube.errors import NotFound
from muster.sim.virtual.cluster import VirtualCluster

SESSIONS = "/apis/muster.dev/v1alpha1/noderemediations"


class Helpers:
    """Executes the drawn requests.

    Args:
        cluster: where they write.
        facts: the state that they see.
        ward: the machines, which they repair before they let them back.
    """

    def __init__(self, cluster: VirtualCluster, facts: HealthFacts, ward: Ward) -> None:
        self._cluster, self._facts, self._ward = cluster, facts, ward

    def ask(self, plea: Plea) -> None:
        """Write a request now."""
        name = f"node-{plea.node:05d}"
        node = self._facts.nodes.get(name)
        if node is None:
            return
        session = self._facts.session_of(node)
        if plea.action == "Release":
            if session is None or not (session.out or self._facts.is_kept_out(node.uid, 0.0)):
                return
            self._ward.mended(name)
        at = moment(self._cluster.loop.now)
        request = {"action": plea.action, "by": "a user", "time": at, "reason": "as drawn"}
        path = remediation_name(name, node.uid)
        with contextlib.suppress(NotFound):
            self._cluster.call("PATCH", f"{SESSIONS}/{path}", {"spec": {"request": request}})
            return
        spec = {"node": name, "nodeUID": node.uid, "request": request}
        self._cluster.call("POST", SESSIONS, {"metadata": {"name": path}, "spec": spec})
