"""Answers one request of a client: who asks, what it costs, whether it may, and then Prometheus' answer."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from aiohttp import web

from muster.telemetry.guard.budgets.budgets import Budgets
from muster.telemetry.guard.callers.caller import Caller, NotIdentified, Peer
from muster.telemetry.guard.callers.callers import Callers
from muster.telemetry.guard.config import GuardConfig
from muster.telemetry.guard.serving.answering import SERVER, page, refusal, reset, stream
from muster.telemetry.guard.serving.assessment import Assess, Assessment
from muster.telemetry.guard.serving.assessor import Refusal
from muster.telemetry.guard.serving.body import Bodies, Held, read_body
from muster.telemetry.guard.serving.dispatcher import Dispatch, Dispatcher
from muster.telemetry.guard.serving.failure import Failure
from muster.telemetry.guard.serving.flights import Flights
from muster.telemetry.guard.serving.pricingturns import PricingTurns
from muster.telemetry.guard.serving.records import Record
from muster.telemetry.guard.serving.revocation import Revocation
from muster.telemetry.guard.serving.settings import ServingSettings
from muster.telemetry.guard.serving.target import split_target
from muster.telemetry.guard.serving.upstream import Upstream, UpstreamRequest

log = logging.getLogger(__name__)

_METHODS: Final = ("GET", "POST")
_ALLOW: Final = "GET, POST, OPTIONS"
_CHAIN_MAX: Final = 8
_PASSED: Final = ("Accept", "Accept-Encoding", "X-Prometheus-Remote-Read-Version")
"""Headers of requests that decide about the answer. All others stay here."""


Page = Callable[[Caller], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Backend:
    """What follows from one version of the configuration.

    Attributes:
        config: the configuration.
        prefix: path of the upstream in front of `/api/v1`.
        upstream: sends requests.
        assess: prices requests and decides about them.
    """

    config: GuardConfig
    prefix: str
    upstream: Upstream
    assess: Assess


class Handler:
    """Answers requests.

    Args:
        backend: of the current configuration; replaced when it changes.
        callers: who may ask.
        budgets: what callers may cost.
        settings: deadlines and limits.
        ended: receives the record of each request.
        pages: documents of the guard itself, by path, for a caller.
    """

    def __init__(
        self,
        backend: Backend,
        callers: Callers,
        budgets: Budgets,
        settings: ServingSettings,
        ended: Callable[[Record], None],
        pages: Mapping[str, Page],
    ) -> None:
        self.backend = backend
        self.flights = Flights(settings)
        self._callers = callers
        self._dispatcher = Dispatcher(self.flights, budgets, settings.after_cancel_s)
        self._pricing_turns = PricingTurns()
        self._bodies = Bodies(settings.bodies_max_bytes)
        self._id = f"muster-guard-{secrets.token_hex(8)}"
        self._settings = settings
        self._ended = ended
        self._pages = pages
        self.revocation = Revocation(partial(self._identify, again=True), settings.recheck_s)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request."""
        record = Record(time.monotonic(), request.headers)
        try:
            with self._bodies.holding() as held:
                return await self._answer(request, record, held)
        except Failure as failure:
            record.outcome, record.status = failure.outcome, failure.status
            if isinstance(failure, Refusal):
                record.assessed, record.reason = failure.assessed, failure.assessed.reason
            response = _refused(request, failure)
            if record.assessed is not None:
                response.headers.update(record.assessed.headers)
            return response
        except asyncio.CancelledError:
            underway = record.underway
            if underway is None or (revoked := underway.revoked) is None or underway.cancelled_otherwise():
                record.outcome = "client_gone"
                raise
            record.outcome, record.status = revoked.outcome, revoked.status
            if isinstance(revoked.__cause__, NotIdentified):
                self._callers.count(revoked.__cause__)
            if request.writer.output_size:
                reset(request)
            return _refused(request, revoked)
        except ConnectionError:
            record.outcome = "client_gone"
            return web.Response()  # aiohttp cannot send it, and ends the connection
        except Exception:
            log.exception("a request failed by a fault of the guard")
            record.status = 500
            if request.writer.output_size:
                reset(request)
            return refusal(Failure("error", 500, "the guard failed; its log has the reason"))
        finally:
            if record.underway is not None:
                self.revocation.end(record.underway)
            self._ended(record)

    async def _answer(self, request: web.BaseRequest, record: Record, held: Held) -> web.StreamResponse:
        backend = self.backend
        if self._id in request.headers.get("Via", ""):
            raise Failure("bad_request", 508, "this request came from this guard: upstream.url leads back to it")
        path, parameters = split_target(request.raw_path, backend.prefix, self._settings.target_max_bytes)
        caller = record.caller = await self._identify(request)
        record.underway = self.revocation.begin(request, caller)
        if request.method == "OPTIONS":
            record.outcome, record.status = "answered", 204
            return web.Response(status=204, headers={"Allow": _ALLOW, "Server": SERVER})
        if request.method not in _METHODS:
            raise Failure("bad_request", 405, f"use {_ALLOW}", headers={"Allow": _ALLOW})
        body = await read_body(request, self._settings, held)
        if path in self._pages:
            record.outcome, record.status = "answered", 200
            return page(self._pages[path](caller))
        content_type = request.headers.get("Content-Type", "")
        async with nullcontext() if backend.config.dry_run else self._pricing_turns.turn(caller.name):
            assessed = await backend.assess(request.method, path, parameters, content_type, body, caller)
        record.assessed, record.reason = assessed, assessed.reason
        dispatch = Dispatch(
            request=self._upstream_request(request, path, assessed, caller),
            upstream=backend.upstream,
            caller=caller,
            cost=assessed.cost,
            shareable=assessed.asked is not None,
            dry_run=backend.config.dry_run,
            open_when_overloaded=backend.config.when_overloaded == "allow",
        )
        return await self._send(dispatch, request, assessed.headers, record)

    async def _send(
        self, dispatch: Dispatch, request: web.BaseRequest, headers: Mapping[str, str], record: Record
    ) -> web.StreamResponse:
        """Send a request to Prometheus, or join an equal one, and send its answer to the client."""
        dispatched = await self._dispatcher.dispatch(dispatch)
        record.shared, record.waited_s = dispatched.shared, dispatched.waited_s
        record.added_s = time.monotonic() - record.started_s - dispatched.waited_s
        if dispatched.over is not None:
            record.reason = record.reason or "over_budget"
        try:
            sent = await stream(request, dispatched.reader, self._settings, headers)
        finally:
            dispatched.reader.leave()
        record.bytes, record.status = sent.bytes, sent.response.status
        record.outcome = "answered" if sent.broken is None else sent.broken.outcome
        return sent.response

    async def _identify(self, request: web.BaseRequest, *, again: bool = False) -> Caller:
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client is gone")
        tls = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        peer = Peer(request.remote or "", certificate)
        identify = self._callers.identify_again if again else self._callers.identify
        try:
            return await identify(peer, request.headers)
        except NotIdentified as error:
            headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
            raise Failure(
                "unauthenticated" if error.status == 401 else "forbidden",
                error.status,
                str(error),
                retry_after_s=error.retry_after_s,
                reason=error.reason,
                headers=headers,
            ) from error

    def _upstream_request(
        self, request: web.BaseRequest, path: str, assessed: Assessment, caller: Caller
    ) -> UpstreamRequest:
        headers = [(name, value) for name in _PASSED if (value := request.headers.get(name)) is not None]
        if assessed.body is not None:
            headers += [
                (name, value)
                for name in ("Content-Type", "Content-Encoding")
                if (value := request.headers.get(name)) is not None
            ]
        # A chain of guards keeps the names of all, so that a loop is found.
        earlier = [each for each in request.headers.get("Via", "").split(",") if "muster-guard-" in each]
        headers.append(("Via", ", ".join([*earlier[:_CHAIN_MAX], f"1.1 {self._id}"])))
        return UpstreamRequest(
            method=request.method,
            path=path,
            asked=assessed.asked,
            parameters=assessed.parameters,
            body=assessed.body,
            headers=tuple(headers),
            private_headers=caller.headers,
            credentials_key=caller.credentials_key,
            timeout_s=assessed.timeout_s,
            max_bytes=assessed.max_bytes,
        )


def _refused(request: web.BaseRequest, failure: Failure) -> web.Response:
    response = refusal(failure)
    if not request.content.at_eof():
        response.force_close()  # the rest of the body is not read
    return response
