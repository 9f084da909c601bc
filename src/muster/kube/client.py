"""The client of the API server: requests about objects of our kinds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar, cast, overload

from muster.kube.connection.restclient import RestClient
from muster.kube.errors import ApiError
from muster.kube.objects.auth import TokenRequest
from muster.kube.objects.core import ServiceAccount
from muster.kube.objects.meta import KubeObject, Listing, ListMeta, Resource
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import decode, encode
from muster.kube.watch import WatchDecoder, WatchEvent

T = TypeVar("T", bound=KubeObject)

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"

PAGE = 500
"""Objects in one page of a list, as in client-go."""


class Client(RestClient):
    """Reads, writes and watches objects of one API server. RestClient describes errors and retries."""

    async def get(self, kind: type[T], name: str, namespace: str | None = None) -> T:
        """Read one object. Without `namespace`, a namespaced object is read from the context's namespace."""
        resource = kind.RESOURCE
        return decode(await self.request("GET", resource.object_path(self._namespace(resource, namespace), name)), kind)

    async def list(
        self,
        kind: type[T],
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_: str = "",
    ) -> Listing[T]:
        """Read objects, of all namespaces if `namespace` is None.

        With `limit`, one page: pass its `continue_` to get the next.
        """
        params = _selection(label_selector, field_selector)
        if limit:
            params["limit"] = str(limit)
        if continue_:
            params["continue"] = continue_
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
        """Read all objects in pages of one consistent snapshot.

        Raises Gone if the snapshot expires between two pages.
        """
        items: list[T] = []
        version = ""
        pages = self.pages(kind, namespace, label_selector=label_selector, field_selector=field_selector, page=page)
        async with aclosing(pages):
            async for listing in pages:
                items += listing.items
                version = listing.resource_version
        return Listing(metadata=ListMeta(resource_version=version), items=items)

    async def pages(
        self,
        kind: type[T],
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        page: int = PAGE,
    ) -> AsyncGenerator[Listing[T], None]:
        """Read all objects as `list_all` does, one page in memory at a time."""
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
            yield listing
            token = listing.continue_
            if not token:
                return

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
            obj: the object. Its own namespace has precedence, then `namespace`, then the context's.
            kind: type of the result if `obj` is a dict.
            namespace: for namespaced objects that name none.
            dry_run: the server validates the object and sets defaults, but does not store it.
            retry_lost: retry if the connection was lost after sending. The first request may have succeeded, so expect
                AlreadyExists.
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
        """Write the whole object if its resourceVersion has not changed; else raise Conflict.

        Our structs are partial: replace only kinds that are ours, or a subresource we own; patch everything else.
        """
        path = obj.RESOURCE.object_path(obj.namespace or None, obj.name, subresource)
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
    ) -> T:
        """Change an object. `patch` is a struct, dict or list (JSON patch), or bytes already encoded."""
        params = {}
        if field_manager:
            params["fieldManager"] = field_manager
        body = await self.request(
            "PATCH",
            kind.RESOURCE.object_path(self._namespace(kind.RESOURCE, namespace), name, subresource),
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
        """Request deletion. If `uid` or `resource_version` is given and does not match, raise Conflict.

        `propagation` is Background, Foreground or Orphan.
        """
        options = _delete_options(uid, resource_version, grace_s)
        if propagation:
            options["propagationPolicy"] = propagation
        path = kind.RESOURCE.object_path(self._namespace(kind.RESOURCE, namespace), name)
        await self.request("DELETE", path, body=encode(options) if len(options) > 2 else None)

    async def bind(
        self, pod_name: str, node: str, *, namespace: str, uid: str, annotations: Mapping[str, str] | None = None
    ) -> None:
        """Bind the pod with `uid` to a node. Raises Conflict if it is bound already or is another pod.

        The API server adds the annotations to the pod (kubernetes pkg/registry/core/pod/storage, assignPod).
        """
        meta = {"name": pod_name, "namespace": namespace, "uid": uid}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {**meta, "annotations": dict(annotations)} if annotations else meta,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self.request("POST", Pod.RESOURCE.object_path(namespace, pod_name, "binding"), body=encode(binding))

    async def evict(self, pod_name: str, *, namespace: str, uid: str = "", dry_run: bool = False) -> None:
        """Evict a pod, or check in a dry run whether the eviction would be allowed.

        Raises TooManyRequests: a PodDisruptionBudget does not allow it now (never retried here).
        """
        eviction: dict[str, Any] = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod_name, "namespace": namespace},
        }
        options = _delete_options(uid, "", None)
        if len(options) > 2:
            eviction["deleteOptions"] = options
        path = Pod.RESOURCE.object_path(namespace, pod_name, "eviction")
        params = {"dryRun": "All"} if dry_run else {}
        await self.request("POST", path, params=params, body=encode(eviction), retry_refused=False)

    async def create_token(self, service_account: str, request: TokenRequest, *, namespace: str) -> TokenRequest:
        """Issue a token for a service account."""
        path = ServiceAccount.RESOURCE.object_path(namespace, service_account, "token")
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
        """Follow changes from `resource_version` until the server ends the stream after `timeout_s`. Not retried.

        Raises Gone if `resource_version` is too old, Unavailable if the connection breaks.
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
        """Like `watch`, but in batches of events that arrived together.

        Raises ServerTimeout after `stall_s` without data.
        """
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

    def _namespace(self, resource: Resource, namespace: str | None) -> str | None:
        return (namespace or self.config.namespace) if resource.namespaced else None


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
