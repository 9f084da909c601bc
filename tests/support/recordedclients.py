"""Clients that follow one resource, and what each of them was given: (operation, version) per object.

A recording also has the versions of each whole state ("replace") that its client has loaded.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import kubernetes.client
import kubernetes.config
import kubernetes.watch
import urllib3.exceptions

from muster.controlplane.children import Child
from muster.controlplane.goprograms import find_built
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.informer import Informer
from muster.kube.objects.core import ConfigMap

PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
JSON: Final = "application/json"
Step = tuple[str, str]
"""Operation (add, update, delete or state) and version."""


@dataclass
class Recording:
    """What one client was given.

    Attributes:
        steps: by key. "state" is the version in a whole state, and "" there means that the object was not in it.
        states: the number of whole states.
    """

    steps: dict[str, list[Step]] = field(default_factory=lambda: defaultdict(list))
    states: int = 0

    def replace(self, versions: Mapping[str, str]) -> None:
        """Record a whole state."""
        self.states += 1
        for key in {*versions, *(key for key in self.steps if self.present(key))}:
            self.steps[key].append(("state", versions.get(key, "")))

    def present(self, key: str) -> bool:
        """Returns whether the client has the object."""
        steps = self.steps.get(key, [])
        return bool(steps) and steps[-1][0] != "delete" and steps[-1] != ("state", "")

    def current(self) -> dict[str, str]:
        """The versions that the client has."""
        return {key: steps[-1][1] for key, steps in self.steps.items() if self.present(key)}

    def changes(self) -> dict[str, list[Step]]:
        """The steps that are not from whole states."""
        found = {key: [step for step in steps if step[0] != "state"] for key, steps in self.steps.items()}
        return {key: steps for key, steps in found.items() if steps}


class GoReflectors:
    """Reflectors of client-go in one process (tools/informers)."""

    def __init__(self, child: Child, log: Path, count: int) -> None:
        self._child = child
        self._log = log
        self._count = count

    def recordings(self) -> list[Recording]:
        """What each was given so far."""
        found = [Recording() for _ in range(self._count)]
        for line in self._log.read_text().splitlines(keepends=True):
            if not line.startswith('{"informer"') or not line.endswith("\n"):
                continue  # a message of client-go, or a line that is not whole yet
            call = json.loads(line)
            recording = found[call["informer"]]
            if call["op"] == "replace":
                recording.replace(call.get("objects", {}))
            else:
                recording.steps[call["key"]].append((call["op"], call["version"]))
        return found


@contextmanager
def go_reflectors(
    kubeconfig: Path,
    log: Path,
    *,
    resource: str = "configmaps",
    group: str = "",
    version: str = "v1",
    namespace: str = "",
    labels: str = "",
    fields: str = "",
    content: str = PROTOBUF,
    count: int = 1,
) -> Iterator[GoReflectors]:
    """Run reflectors of client-go until the end of the block."""
    options = {
        "kubeconfig": kubeconfig,
        "group": group,
        "version": version,
        "resource": resource,
        "namespace": namespace,
        "labels": labels,
        "fields": fields,
        "content": content,
        "count": count,
    }
    program = find_built("informers") / "informers"
    child = Child([program, *(f"-{name}={value}" for name, value in options.items())], log)
    try:
        yield GoReflectors(child, log, count)
    finally:
        child.stop()


@contextmanager
def kubectl_watch(kubectl: Path, kubeconfig: Path, log: Path) -> Iterator[Path]:
    """Run `kubectl get configmaps --watch` with whole objects until the end of the block."""
    child = Child(
        [
            kubectl,
            f"--kubeconfig={kubeconfig}",
            "get",
            "configmaps",
            "--all-namespaces",
            "--watch",
            "--output-watch-events",
            "--output=jsonpath={.type} {.object.metadata.namespace}/{.object.metadata.name} "
            "{.object.metadata.resourceVersion}{'\\n'}",
        ],
        log,
    )
    try:
        yield log
    finally:
        child.stop()


def kubectl_steps(log: Path) -> dict[str, list[Step]]:
    """What kubectl printed, without the initial state."""
    found: dict[str, list[Step]] = defaultdict(list)
    for line in log.read_text().splitlines():
        words = line.split()
        if len(words) == 3 and words[0] in OPERATIONS:
            found[words[1]].append((OPERATIONS[words[0]], words[2]))
    return found


OPERATIONS: Final = {"ADDED": "add", "MODIFIED": "update", "DELETED": "delete"}


class PythonWatch:
    """A list and a watch by the official client for Python, in a thread."""

    def __init__(self, kubeconfig: Path) -> None:
        self.recording = Recording()
        api_client = kubernetes.config.new_client_from_config(str(kubeconfig))  # type: ignore[no-untyped-call]
        self._api: Any = kubernetes.client.CoreV1Api(api_client)
        self._watch: Any = kubernetes.watch.Watch()  # type: ignore[no-untyped-call]
        self._thread = threading.Thread(target=self._until_closed, daemon=True)
        self._thread.start()

    def _until_closed(self) -> None:
        with suppress(urllib3.exceptions.ProtocolError):  # the client closes a response that has not ended
            self._run()

    def _run(self) -> None:
        listed = self._api.list_config_map_for_all_namespaces()
        self.recording.replace(
            {f"{each.metadata.namespace}/{each.metadata.name}": each.metadata.resource_version for each in listed.items}
        )
        events = self._watch.stream(
            self._api.list_config_map_for_all_namespaces,
            resource_version=listed.metadata.resource_version,
            timeout_seconds=600,
        )
        for event in events:
            meta = event["raw_object"]["metadata"]
            key = f"{meta['namespace']}/{meta['name']}"
            self.recording.steps[key].append((OPERATIONS[event["type"]], meta["resourceVersion"]))

    @property
    def running(self) -> bool:
        """Whether the watch is open."""
        return self._thread.is_alive()

    def stop_at_next_event(self) -> None:
        """End the watch with its next event."""
        self._watch.stop()


@asynccontextmanager
async def our_informer(kubeconfig: Path) -> AsyncIterator[Recording]:
    """Run an informer of ours until the end of the block. Its handler is given real differences only."""
    recording = Recording()

    def changed(old: ConfigMap | None, new: ConfigMap | None) -> None:
        one = new or old
        assert one is not None
        operation = "delete" if new is None else "add" if old is None else "update"
        recording.steps[one.key].append((operation, one.metadata.resource_version))

    async with Client(load_config(kubeconfig)) as client:
        informer = Informer(client, ConfigMap)
        informer.add_handler(changed)
        running = asyncio.create_task(informer.run())
        try:
            await informer.wait_synced(60)
            recording.states = 1
            yield recording
        finally:
            running.cancel()
            await asyncio.wait([running])
