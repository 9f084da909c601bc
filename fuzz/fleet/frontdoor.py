"""The stage before the API server: the webhook that fills in pods, its metrics, and a record of nodes' writers."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable

import msgspec

from muster.admission.mutate import Home, Rules, mutate
from muster.admission.review import NewPod
from muster.api.names import LABEL_TEAM
from muster.embedded.apiserver.core import Answer, ApiCore
from muster.embedded.apiserver.request import Request, Response
from muster.embedded.apiserver.verbs.patches import json_patch
from muster.embedded.item import Item
from muster.embedded.objects import decode, encode
from muster.kube.objects.struct import decode as decode_as
from muster.sim.virtual.network import Trace

NodeWritten = Callable[[str, Item | None, Item | None], None]
"""Called with the client that changed a node, and the node before and after."""
_RULES = Rules(team_key=LABEL_TEAM)
_PODS = re.compile(r"/api/v1/namespaces/([^/]+)/pods")


class FrontDoor:
    """Passes requests on to the API server.

    Args:
        core: the API server.
        trace: records its answers.

    Attributes:
        node_written: called with every requested change of a node.
    """

    def __init__(self, core: ApiCore, trace: Trace) -> None:
        self.node_written: list[NodeWritten] = []
        self._core = core
        self._codes: Counter[int] = Counter()
        self._written: list[tuple[Item | None, Item | None]] = []
        self._handled = False
        core.store.listeners.append(self._changed)
        trace.listeners.append(self._answered)

    def handle(self, request: Request) -> Answer:
        """Answer a request."""
        self._written.clear()
        self._handled = True
        if request.path == "/metrics":
            return Response(200, self._metrics().encode(), content_type="text/plain")
        made = _PODS.fullmatch(request.path) if request.method == "POST" else None
        return self._core.handle(self._filled(request, made[1]) if made is not None else request)

    def _filled(self, request: Request, namespace: str) -> Request:
        """The request with what the webhook adds to the pod."""
        home = self._core.store.define("namespaces").items.get(namespace)
        team = home.labels.get(LABEL_TEAM, "") if home is not None else ""
        operations = mutate(decode_as(request.body, NewPod), Home(team), _RULES)
        if not operations:
            return request
        patch = msgspec.json.decode(msgspec.json.encode(operations))
        return dataclasses.replace(request, body=encode(json_patch(decode(request.body), patch)))

    def _metrics(self) -> str:
        """The metrics of the API server's load, which is always low in a simulation."""
        lines = ["process_start_time_seconds 1", 'apiserver_current_inflight_requests{request_kind="mutating"} 1']
        lines += [f'apiserver_request_total{{code="{code}",verb="GET"}} {n}' for code, n in sorted(self._codes.items())]
        return "\n".join(lines) + "\n"

    def _changed(self, resource: str, old: Item | None, new: Item | None) -> None:
        if resource == "nodes":
            self._written.append((old, new))

    def _answered(self, now: float, client: str, request: Request, code: int, body: bytes) -> None:
        self._codes[code] += 1
        written, self._written = self._written, []
        handled, self._handled = self._handled, False
        if not handled or request.method == "GET":
            return  # what was refused on its way wrote nothing: that was the control plane
        for old, new in written:
            for listener in self.node_written:
                listener(client, old, new)
