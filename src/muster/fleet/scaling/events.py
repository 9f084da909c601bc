"""Writes Events about scaling for gangs, nodes and the ConfigMap: each fact once, when it changes."""

from __future__ import annotations

from muster.fleet.scaling.config import CONFIG_MAP
from muster.fleet.scaling.demands import Demands
from muster.fleet.scaling.executor import Carried
from muster.fleet.scaling.plan import Cordon, Delete, Outcome, Plan, SetSize, Uncordon
from muster.fleet.scaling.status import ScalingStatus
from muster.kube.events import NORMAL, WARNING, EventRecorder
from muster.kube.objects.core import ObjectReference

_SILENT = frozenset({Outcome.COMING, Outcome.SETTLING, Outcome.NOT_APPROVED})


class Teller:
    """Writes Events and remembers which ones were written.

    Args:
        events: receives the Events.
        demands: has the objects for Events about gangs.
        namespace: the namespace of the ConfigMap.
    """

    def __init__(self, events: EventRecorder, demands: Demands, namespace: str) -> None:
        self._events = events
        self._demands = demands
        self._config = ObjectReference(api_version="v1", kind="ConfigMap", name=CONFIG_MAP, namespace=namespace)
        self._said: dict[str, Outcome] = {}
        self._available: dict[str, tuple[str, str]] = {}

    def planned(self, plan: Plan) -> None:
        """Report the outcome for each gang, if it has changed."""
        for key, answer in plan.answers.items():
            about = self._demands.about.get(key)
            if about is not None and answer.outcome not in _SILENT and self._said.get(key) is not answer.outcome:
                type_ = NORMAL if answer.outcome is Outcome.ADDED else WARNING
                self._events.event(about, type_, answer.outcome.value, answer.message)
            if answer.outcome not in _SILENT:
                self._said[key] = answer.outcome
        self._said = {key: outcome for key, outcome in self._said.items() if key in plan.answers}

    def carried(self, carried: Carried) -> None:
        """Report an executed action. Failures appear in conditions and metrics instead."""
        action = carried.action
        if not carried.done:
            return
        if isinstance(action, SetSize):
            reason = "PoolGrows" if action.size > action.before else "PoolRequestCancelled"
            text = f"pool {action.pool}: {action.before} to {action.size} nodes, {action.why}"
            self._events.event(self._config, NORMAL, reason, text)
        elif isinstance(action, Delete) and not action.node:
            text = f"pool {action.pool}: instance {action.instance} deleted: {action.why}"
            self._events.event(self._config, WARNING, "InstanceReplaced", text)
        elif isinstance(action, Cordon | Uncordon | Delete):
            node = ObjectReference(api_version="v1", kind="Node", name=action.node, uid=action.uid)
            words = {Cordon: "ScaleDownCordoned", Uncordon: "ScaleDownStopped", Delete: "ScaleDown"}
            self._events.event(node, NORMAL, words[type(action)], f"pool {action.pool}: {action.why}")

    def status(self, status: ScalingStatus) -> None:
        """Report pools whose requests are newly paused."""
        for pool in status.pools:
            condition = pool.conditions[0]
            state = (condition.status, condition.reason)
            if condition.status == "False" and self._available.get(pool.name) != state:
                text = f"pool {pool.name}: {condition.message}"
                self._events.event(self._config, WARNING, condition.reason, text)
            self._available[pool.name] = state
