"""The client of the API server: typed requests with retries, over one session."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from types import TracebackType
from typing import Any, Self, TypeVar, cast, overload

import aiohttp
from prometheus_client import Counter, Histogram

from muster.kube.auth import TokenRequest
from muster.kube.config import ClusterConfig
from muster.kube.core import ServiceAccount
from muster.kube.errors import ApiError, NotFound, ServerTimeout, TooManyRequests, Unavailable
from muster.kube.meta import KubeObject, Listing, ListMeta, Resource
from muster.kube.metrics import KubeMetrics, kube_metrics
from muster.kube.pod import Pod
from muster.kube.struct import decode, encode
from muster.kube.transport import Answer, HttpTransport, NotSent, Transport
from muster.kube.watch import WatchDecoder, WatchEvent

T = TypeVar("T", bound=KubeObject)

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

PAGE = 500
"""Objects a page of a long list, as in client-go."""
_JSON = "application/json"
_RETRIES = 6
_BACKOFF_BASE_S = 0.1
_BACKOFF_MAX_S = 10.0


class Client:
    """Talks to one API server. An async context manager; use it from one event loop.

    Retried, with exponential backoff and full jitter, honouring Retry-After: 429, 503 that carry Retry-After (the
    server did not act), connections that could not be made, and for idempotent requests lost connections and gateway
    errors.
    Every method raises ApiError (see muster.kube.errors) and, when there are no usable credentials, ConfigError.

    Args:
        config: the cluster.
        user_agent: User-Agent header.
        timeout_s: deadline of each single request.
        connections: requests under way at once.
        retry_for_s: no request is retried longer than this.
        rng: source of jitter.
        metrics: where requests are counted.
        transport: how requests travel; HTTP by default.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        user_agent: str = "muster",
        timeout_s: float = 30.0,
        connections: int = 64,
        retry_for_s: float = 60.0,
        rng: random.Random | None = None,
        metrics: KubeMetrics | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.config = config
        self._timeout_s = timeout_s
        self._retry_for_s = retry_for_s
        self._rng = rng or random.Random()
        self._metrics = metrics or kube_metrics()
        self._transport = transport or HttpTransport(config, user_agent=user_agent, connections=connections)
        self._resources: dict[tuple[str, str], Resource] = {}
        self._counted: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    async def get(self, kind: type[T], name: str, namespace: str | None = None) -> T:
        """Read one object; from the context's namespace when a namespaced kind is asked for without one."""
        resource = kind.RESOURCE
        return decode(await self.request("GET", resource.path(self._namespace(resource, namespace), name)), kind)

    async def list(
        self,
        kind: type[T],
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_: str = "",
        resource_version: str = "",
        resource_version_match: str = "",
    ) -> Listing[T]:
        """Read objects; all namespaces when `namespace` is None. With `limit`, one page: pass on its `continue_`."""
        params = _selection(label_selector, field_selector)
        if limit:
            params["limit"] = str(limit)
        if continue_:
            params["continue"] = continue_
        if resource_version:
            params["resourceVersion"] = resource_version
        if resource_version_match:
            params["resourceVersionMatch"] = resource_version_match
        body = await self.request("GET", kind.RESOURCE.path(namespace), params=params, verb="LIST")
        return cast("Listing[T]", decode(body, Listing[kind]))  # type: ignore[valid-type]

    async def list_all(
        self,
        kind: type[T],
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        page: int = PAGE,
    ) -> Listing[T]:
        """Read all objects in pages of one consistent snapshot. Raises Gone when that expires between two pages."""
        items: list[T] = []
        token = ""
        while True:
            listing = await self.list(
                kind,
                namespace,
                label_selector=label_selector,
                field_selector=field_selector,
                limit=page,
                continue_=token,
            )
            items += listing.items
            token = listing.continue_
            if not token:
                return Listing(metadata=ListMeta(resource_version=listing.resource_version), items=items)

    @overload
    async def create(
        self,
        obj: T,
        *,
        kind: None = None,
        namespace: str | None = None,
        dry_run: bool = False,
        retry_lost: bool = False,
    ) -> T: ...
    @overload
    async def create(
        self,
        obj: dict[str, Any],
        *,
        kind: type[T],
        namespace: str | None = None,
        dry_run: bool = False,
        retry_lost: bool = False,
    ) -> T: ...
    @overload
    async def create(
        self,
        obj: dict[str, Any],
        *,
        kind: None = None,
        namespace: str | None = None,
        dry_run: bool = False,
        retry_lost: bool = False,
    ) -> dict[str, Any]: ...
    async def create(
        self,
        obj: Any,
        *,
        kind: type[Any] | None = None,
        namespace: str | None = None,
        dry_run: bool = False,
        retry_lost: bool = False,
    ) -> Any:
        """Create an object: a struct, or a dict (returned as `kind` if given, else as a dict).

        Args:
            obj: the object; its own namespace counts before `namespace`, then the context's.
            kind: type of the answer for a dict.
            namespace: for namespaced objects that name none.
            dry_run: let the server check and default it, without storing it.
            retry_lost: create again when the connection was lost after sending; the object may then exist already, so
                expect AlreadyExists.
        """
        params = {"dryRun": "All"} if dry_run else {}
        if isinstance(obj, KubeObject):
            resource, own = obj.RESOURCE, obj.namespace
            kind = type(obj)
        else:
            own = (obj.get("metadata") or {}).get("namespace", "")
            resource = kind.RESOURCE if kind is not None else await self.resource(obj["apiVersion"], obj["kind"])
        path = resource.path(self._namespace(resource, own or namespace))
        body = await self.request("POST", path, params=params, body=encode(obj), idempotent=retry_lost)
        return decode(body, kind if kind is not None else dict)

    async def replace(self, obj: T, *, subresource: str = "") -> T:
        """Write the whole object, only if it is still at its resourceVersion (else Conflict).

        Our structs are partial: replace only kinds that are ours, or a subresource we own; patch everything else.
        """
        path = obj.RESOURCE.path(obj.namespace or None, obj.name, subresource)
        return decode(await self.request("PUT", path, body=encode(obj)), type(obj))

    async def patch(
        self,
        kind: type[T],
        name: str,
        patch: Any,
        *,
        namespace: str | None = None,
        subresource: str = "",
        content_type: str = MERGE_PATCH,
        field_manager: str = "",
        force: bool = False,
    ) -> T:
        """Change an object. `patch` is a struct, dict or list (JSON patch), or bytes already encoded."""
        params = {}
        if field_manager:
            params["fieldManager"] = field_manager
        if force:
            params["force"] = "true"
        body = await self.request(
            "PATCH",
            kind.RESOURCE.path(self._namespace(kind.RESOURCE, namespace), name, subresource),
            params=params,
            body=patch if isinstance(patch, bytes) else encode(patch),
            headers={"Content-Type": content_type},
            idempotent=content_type != JSON_PATCH,
        )
        return decode(body, kind)

    async def delete(
        self,
        kind: type[T],
        name: str,
        *,
        namespace: str | None = None,
        uid: str = "",
        resource_version: str = "",
        grace_s: int | None = None,
        propagation: str = "",
    ) -> None:
        """Ask for deletion, only of the object with `uid` and at `resource_version` where given (else Conflict).

        `propagation` is Background, Foreground or Orphan.
        """
        options = _delete_options(uid, resource_version, grace_s)
        if propagation:
            options["propagationPolicy"] = propagation
        path = kind.RESOURCE.path(self._namespace(kind.RESOURCE, namespace), name)
        await self.request("DELETE", path, body=encode(options) if len(options) > 2 else None)

    async def bind(self, pod_name: str, node: str, *, namespace: str, uid: str) -> None:
        """Bind a pod to a node, only if it still is the pod with `uid`. Conflict: bound already, or another pod."""
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod_name, "namespace": namespace, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self.request("POST", Pod.RESOURCE.path(namespace, pod_name, "binding"), body=encode(binding))

    async def evict(self, pod_name: str, *, namespace: str, uid: str = "", grace_s: int | None = None) -> None:
        """Evict a pod. TooManyRequests: a PodDisruptionBudget does not allow it now (never retried here)."""
        eviction: dict[str, Any] = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod_name, "namespace": namespace},
        }
        options = _delete_options(uid, "", grace_s)
        if len(options) > 2:
            eviction["deleteOptions"] = options
        path = Pod.RESOURCE.path(namespace, pod_name, "eviction")
        await self.request("POST", path, body=encode(eviction), retry_refused=False)

    async def create_token(self, service_account: str, request: TokenRequest, *, namespace: str) -> TokenRequest:
        """Issue a token for a service account."""
        path = ServiceAccount.RESOURCE.path(namespace, service_account, "token")
        return decode(await self.request("POST", path, body=encode(request)), TokenRequest)

    async def watch(
        self,
        kind: type[T],
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str = "",
        bookmarks: bool = True,
        timeout_s: float = 300,
    ) -> AsyncIterator[WatchEvent[T]]:
        """Follow changes from `resource_version` until the server ends the stream, by `timeout_s`. Not retried.

        Raises Gone when `resource_version` is too old, Unavailable when the connection breaks.
        """
        batches = self.watch_batches(
            kind,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            resource_version=resource_version,
            bookmarks=bookmarks,
            timeout_s=timeout_s,
        )
        async with aclosing(batches):
            async for batch in batches:
                for event in batch:
                    yield event

    async def watch_batches(
        self,
        kind: type[T],
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str = "",
        bookmarks: bool = True,
        timeout_s: float = 300,
        stall_s: float | None = None,
        send_initial_events: bool = False,
    ) -> AsyncGenerator[Sequence[WatchEvent[T]], None]:
        """Like `watch`, in batches of what arrived together; ServerTimeout after `stall_s` without a byte."""
        params = _selection(label_selector, field_selector)
        params |= {"watch": "true", "timeoutSeconds": str(max(1, int(timeout_s)))}
        if resource_version:
            params["resourceVersion"] = resource_version
        if bookmarks:
            params["allowWatchBookmarks"] = "true"
        if send_initial_events:
            params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        decoder = WatchDecoder(kind)
        path = kind.RESOURCE.path(namespace)
        silence_s = stall_s if stall_s is not None else timeout_s + self._timeout_s
        try:
            async with self._transport.chunks(path, params=params, stall_s=silence_s) as chunks:
                self._metrics.requests.labels("WATCH", "200").inc()
                async for chunk in chunks:
                    if batch := decoder.feed(chunk):
                        yield batch
        except ApiError as error:
            self._metrics.requests.labels("WATCH", str(error.status or error.reason)).inc()
            raise

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        verb: str = "",
        idempotent: bool | None = None,
        retry_refused: bool = True,
    ) -> bytes:
        """Send any request and return the body of the answer.

        Args:
            method: HTTP method.
            path: below the server's URL, such as `/version`.
            params: query parameters.
            body: JSON, unless `headers` has another Content-Type.
            headers: additional headers.
            verb: name in the metrics, `method` by default.
            idempotent: whether it may be sent twice; by default all but POST and PATCH may.
            retry_refused: whether to repeat what 429 or 503 with Retry-After refused.
        """
        verb = verb or method
        if idempotent is None:
            idempotent = method not in ("POST", "PATCH")
        sent_headers = {"Content-Type": _JSON} if body is not None else {}
        sent_headers.update(headers or {})
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + self._retry_for_s
        for attempt in range(_RETRIES):
            error: ApiError
            started = time.perf_counter()
            try:
                answer = await self._transport.request(
                    method, path, params=params or {}, body=body, headers=sent_headers, timeout_s=self._timeout_s
                )
                self._count(verb, answer, started)
                if answer.status < 300:
                    return answer.body
                error = answer.error()
            except ApiError as lost:
                self._metrics.requests.labels(verb, str(lost.status or lost.reason)).inc()
                error = lost
            if attempt == _RETRIES - 1 or not _may_retry(error, idempotent, retry_refused):
                raise error
            delay_s = self._delay_s(attempt, error.retry_after_s)
            if clock() + delay_s > give_up_at:
                raise error
            self._metrics.retries.labels(verb, error.reason or str(error.status)).inc()
            await asyncio.sleep(delay_s)
        raise AssertionError("unreachable")

    def stream(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Open an answer of unknown length, such as a log; read its `content`."""
        return self._transport.stream(method, path, params=params or {})

    def websocket(
        self, path: str, *, params: Mapping[str, str] | None = None, protocols: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket, such as exec with protocol `v5.channel.k8s.io`."""
        return self._transport.websocket(path, params=params or {}, protocols=protocols)

    async def resource(self, api_version: str, kind: str) -> Resource:
        """Ask the server where a kind lives (once). Raises NotFound when it does not serve it."""
        known = self._resources.get((api_version, kind))
        if known is not None:
            return known
        group, _, version = api_version.rpartition("/")
        body = await self.request("GET", f"/apis/{api_version}" if group else f"/api/{api_version}")
        for entry in decode(body, dict)["resources"]:
            if "/" not in entry["name"]:
                found = Resource(group, version, entry["name"], entry["kind"], entry["namespaced"])
                self._resources[(api_version, entry["kind"])] = found
        if (api_version, kind) not in self._resources:
            raise NotFound(404, "NotFound", f"{self.config.server} serves no kind {kind} in {api_version}")
        return self._resources[(api_version, kind)]

    def _namespace(self, resource: Resource, namespace: str | None) -> str | None:
        return (namespace or self.config.namespace) if resource.namespaced else None

    def _delay_s(self, attempt: int, retry_after_s: float | None) -> float:
        backoff_s = self._rng.uniform(0, min(_BACKOFF_MAX_S, _BACKOFF_BASE_S * 2**attempt))
        return backoff_s if retry_after_s is None else retry_after_s + backoff_s

    def _count(self, verb: str, answer: Answer, started: float) -> None:
        counted = self._counted.get((verb, answer.status))
        if counted is None:
            requests = self._metrics.requests.labels(verb, str(answer.status))
            counted = self._counted[(verb, answer.status)] = (requests, self._metrics.request_seconds.labels(verb))
        counted[0].inc()
        counted[1].observe(time.perf_counter() - started)


def _may_retry(error: ApiError, idempotent: bool, retry_refused: bool) -> bool:
    if isinstance(error, NotSent):
        return error.reason != "TLSFailure"
    if isinstance(error, TooManyRequests):
        return retry_refused
    if isinstance(error, Unavailable) and error.retry_after_s is not None:
        return retry_refused
    return idempotent and isinstance(error, Unavailable | ServerTimeout)


def _selection(label_selector: str, field_selector: str) -> dict[str, str]:
    params = {}
    if label_selector:
        params["labelSelector"] = label_selector
    if field_selector:
        params["fieldSelector"] = field_selector
    return params


def _delete_options(uid: str, resource_version: str, grace_s: int | None) -> dict[str, Any]:
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    preconditions = {key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value}
    if preconditions:
        options["preconditions"] = preconditions
    return options
