"""The row of a pod in a table: readiness, one word for its state, restarts.

Source: kubernetes pkg/printers/internalversion/printers.go (printPod): which state wins.
"""

from __future__ import annotations

from typing import Any

from muster.embedded.apiserver.tables.table import age, created, name_of
from muster.embedded.objects import Obj, items, section


def pod_row(obj: Obj, now: float) -> list[Any]:
    """Return the cells of a pod."""
    spec, status = section(obj, "spec"), section(obj, "status")
    sidecars = {item.get("name") for item in items(spec, "initContainers") if item.get("restartPolicy") == "Always"}
    total = len(items(spec, "containers")) + len(sidecars)
    word = str(status.get("reason") or status.get("phase") or "")
    conditions = {item.get("type"): item for item in items(status, "conditions")}
    if conditions.get("PodScheduled", {}).get("reason") == "SchedulingGated":
        word = "SchedulingGated"
    initial = items(status, "initContainerStatuses")
    waiting, ready = _initializing(initial, sidecars, len(items(spec, "initContainers")))
    counted = initial
    if waiting and conditions.get("Initialized", {}).get("status") != "True":
        word = waiting
    else:
        containers = items(status, "containerStatuses")
        counted = [item for item in initial if item.get("name") in sidecars] + containers
        word, running = _running(containers, word, conditions)
        ready += running
    if section(obj, "metadata").get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            word = "Unknown"
        elif status.get("phase") not in ("Succeeded", "Failed"):
            word = "Terminating"
    addresses = items(status, "podIPs")
    return [
        name_of(obj),
        f"{ready}/{total}",
        word,
        _restarts(counted, now),
        created(obj, now),
        (addresses[0].get("ip") if addresses else None) or "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        _gates(items(spec, "readinessGates"), conditions),
    ]


def _initializing(statuses: list[Obj], sidecars: set[Any], total: int) -> tuple[str, int]:
    ready = 0
    for index, container in enumerate(statuses):
        state = section(container, "state")
        ended, waiting = state.get("terminated"), section(state, "waiting")
        if ended is not None and ended.get("exitCode") == 0:
            continue
        if container.get("name") in sidecars and container.get("started"):
            ready += bool(container.get("ready"))
            continue
        if ended is not None:
            return "Init:" + _ended(ended), ready
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return "Init:" + str(waiting["reason"]), ready
        return f"Init:{index}/{total}", ready
    return "", ready


def _running(containers: list[Obj], word: str, conditions: dict[Any, Obj]) -> tuple[str, int]:
    ready, failure = 0, ""
    for container in reversed(containers):
        state = section(container, "state")
        ended, waiting = state.get("terminated"), section(state, "waiting")
        if waiting.get("reason"):
            word = str(waiting["reason"])
        elif ended is not None:
            word = _ended(ended)
            if ended.get("exitCode"):
                failure = word
        elif container.get("ready") and state.get("running") is not None:
            ready += 1
    if word == "Completed":
        if ready and conditions.get("Ready", {}).get("status") == "True":
            word = "Running"
        elif failure:
            word = failure
        elif ready:
            word = "NotReady"
    return word, ready


def _ended(state: Obj) -> str:
    if state.get("reason"):
        return str(state["reason"])
    return f"Signal:{state['signal']}" if state.get("signal") else f"ExitCode:{state.get('exitCode', 0)}"


def _restarts(containers: list[Obj], now: float) -> str:
    count = sum(container.get("restartCount", 0) for container in containers)
    ends = [section(section(container, "lastState"), "terminated").get("finishedAt") for container in containers]
    last = max((end for end in ends if end), default=None)
    return f"{count} ({age(last, now)} ago)" if count and last else str(count)


def _gates(gates: list[Obj], conditions: dict[Any, Obj]) -> str:
    if not gates:
        return "<none>"
    true = sum(conditions.get(gate.get("conditionType"), {}).get("status") == "True" for gate in gates)
    return f"{true}/{len(gates)}"
