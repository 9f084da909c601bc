"""The webhook's HTTP handlers: /mutate for new pods, /allocation for the allocation's ConfigMap.

It uses aiohttp's low-level server, because for two paths, a router and its signals would be a sixth of the cost of a
request.
"""

from __future__ import annotations

import logging
import time
from typing import Final, Protocol

import msgspec
from aiohttp import web

from muster.admission.metrics import AdmissionMetrics
from muster.admission.mutate import Home, Rules, mutate
from muster.admission.review import ConfigMapReview, PodReview, answer, refusal
from muster.kube.objects.struct import decoder
from muster.teams.config import from_data
from muster.teams.yaml_reader import TeamsConfigError

log = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""A request contains the object, which may have 1.5 MiB in etcd and more as JSON."""
_UNKNOWN: Final = (
    "Muster does not know this namespace's team yet, so this pod runs only where no team does; make it again"
)


class Knowledge(Protocol):
    """The knowledge about the cluster that the webhook needs."""

    def get(self, namespace: str) -> Home | None:
        """Return the entry of a namespace; None if it is not known."""

    async def ask(self, namespace: str) -> Home | None:
        """Ask the API server about a namespace; None if that fails."""

    def without_nodes(self, team: str) -> bool:
        """Return whether the team is known to have no nodes."""


class AdmissionServer:
    """Answers requests of the API server.

    Args:
        known: the cache of namespaces and teams.
        rules: the names of this cluster.
        metrics: counts the requests.
    """

    def __init__(self, known: Knowledge, rules: Rules, metrics: AdmissionMetrics) -> None:
        """Create the server; `handle` serves it."""
        self._known, self._rules = known, rules
        self._seconds = metrics.seconds
        self._outcomes = {
            each: metrics.requests.labels(each) for each in ("filled_in", "complete", "unknown", "refused", "malformed")
        }
        self._answers = {"/mutate": self._mutate, "/allocation": self._allocation}

    async def handle(self, request: web.BaseRequest) -> web.Response:
        """Answer one request. Raises HTTPException for an unknown path or a body that is too long."""
        answers = self._answers.get(request.path)
        if answers is None:
            raise web.HTTPNotFound
        if request.method != "POST":
            raise web.HTTPMethodNotAllowed(request.method, ["POST"])
        return await answers(request)

    async def _mutate(self, request: web.BaseRequest) -> web.Response:
        body = await request.read()
        began = time.perf_counter()
        try:
            asked = decoder(PodReview).decode(body).request
        except msgspec.DecodeError as error:
            return self._malformed(error)
        home = self._known.get(asked.namespace) or await self._known.ask(asked.namespace)
        if home is None:
            return self._said("unknown", answer(asked.uid, warning=_UNKNOWN), began)
        team = asked.object.metadata.labels.get(self._rules.team_key, "") or home.team
        operations = mutate(asked.object, home, self._rules, self._known.without_nodes(team))
        return self._said("filled_in" if operations else "complete", answer(asked.uid, operations), began)

    async def _allocation(self, request: web.BaseRequest) -> web.Response:
        body = await request.read()
        began = time.perf_counter()
        try:
            asked = decoder(ConfigMapReview).decode(body).request
        except msgspec.DecodeError as error:
            return self._malformed(error)
        try:
            from_data(asked.object.data)
        except TeamsConfigError as error:
            return self._said("refused", refusal(asked.uid, str(error)), began)
        return self._said("complete", answer(asked.uid), began)

    def _said(self, outcome: str, body: bytes, began: float) -> web.Response:
        self._outcomes[outcome].inc()
        self._seconds.observe(time.perf_counter() - began)
        return web.Response(body=body, content_type="application/json")

    def _malformed(self, error: msgspec.DecodeError) -> web.Response:
        self._outcomes["malformed"].inc()
        log.warning("a question that cannot be read: %s", error)
        return web.Response(status=400, text=f"no AdmissionReview of admission.k8s.io/v1: {error}\n")
