"""The API server without sockets: takes a request, and returns an answer or an open watch.

`ApiCore.handle` is synchronous. It takes its time from a given clock and its randomness from a given generator, so the
simulator can run it on virtual time.
"""

from __future__ import annotations

import random

from muster.embedded.apiserver import discovery
from muster.embedded.apiserver.access.reviews import review
from muster.embedded.apiserver.access.tokens import TokenAuthority
from muster.embedded.apiserver.kinds.crds import resource_type
from muster.embedded.apiserver.request import ProxyResponse, Request, Response, json_response
from muster.embedded.apiserver.routes import Route, parse
from muster.embedded.apiserver.status import (
    StatusError,
    bad_request,
    forbidden,
    forbidden_field,
    invalid,
    invalid_object,
    method_not_allowed,
    no_such_resource,
    not_found,
    success,
    unsupported,
    unsupported_media_type,
)
from muster.embedded.apiserver.types import openapi
from muster.embedded.apiserver.types.builtin import CREATE_ONLY, builtin_types
from muster.embedded.apiserver.types.pod_subresources import PodSubresources
from muster.embedded.apiserver.types.quota import QuotaLedger
from muster.embedded.apiserver.types.registry import Registry, ResourceType
from muster.embedded.apiserver.types.strategy import Context
from muster.embedded.apiserver.verbs import protobuf
from muster.embedded.apiserver.verbs.bodies import BodyError, read_object
from muster.embedded.apiserver.verbs.deletes import Deletes, read_options
from muster.embedded.apiserver.verbs.incoming import received
from muster.embedded.apiserver.verbs.patches import APPLY_PATCH, applied_object, change_for
from muster.embedded.apiserver.verbs.reads import Reads
from muster.embedded.apiserver.verbs.watches import WatchResponse
from muster.embedded.apiserver.verbs.writes import Writes, key_of
from muster.embedded.item import Item
from muster.embedded.objects import Clock, Obj
from muster.embedded.store import Store

MANAGER_CHARACTERS_MAX = 128
CRDS = "customresourcedefinitions.apiextensions.k8s.io"
Answer = Response | WatchResponse | ProxyResponse
FOUND_VERBS = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_SENT_TO = {
    "token": ("authentication.k8s.io/v1", "TokenRequest"),
    "binding": ("v1", "Binding"),
    "eviction": ("policy/v1", "Eviction"),
}
COLLECTION_VERBS = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}


class ApiCore:
    """The state and verbs of one API server."""

    def __init__(self, store: Store, clock: Clock, rng: random.Random, signing_key: bytes = b"") -> None:
        self.store = store
        self.root_ca = ""
        self.registry = Registry(builtin_types())
        self.context = Context(store, clock, rng, QuotaLedger(store))
        for resource in self.registry.stored():
            if "list" in resource.verbs:
                store.define(resource.storage, resource.describe, resource.indexes)
        self.reads = Reads(self.context)
        self.writes = Writes(self.context)
        self.deletes = Deletes(self.context)
        self.tokens = TokenAuthority(self.context, signing_key) if signing_key else None
        pods = self.registry.find("", "v1", "pods")
        assert pods is not None
        store.listeners.append(self._serve_custom)
        self.pods = PodSubresources(self.context, self.deletes, pods)

    def handle(self, request: Request) -> Answer:
        """Answer a request. An error becomes a Status."""
        self.context.warnings.clear()
        self.context.patching = False
        self.context.field_validation = request.query.get("fieldValidation") or "Warn"
        try:
            answer = self._dispatch(request)
        except StatusError as error:
            answer = json_response(error.code, error.status())
            seconds = (error.details or {}).get("retryAfterSeconds")
            if seconds:
                answer.headers["Retry-After"] = str(seconds)
        if isinstance(answer, Response) and self.context.warnings:
            answer.warnings.extend(dict.fromkeys(self.context.warnings))
        return answer

    def _serve_custom(self, storage: str, old: Item | None, new: Item | None) -> None:
        if storage != CRDS:
            return
        if old is not None:
            known = self.registry.of_storage(old.name)
            if known is not None and known.custom:
                self.registry.remove(known)
        if new is not None:
            self.registry.add(resource_type(new.object()))

    def serve_stored_kinds(self) -> None:
        """Serve the custom kinds whose definitions are in the store."""
        for item in self.store.define(CRDS).items.values():
            self._serve_custom(CRDS, None, item)

    def _dispatch(self, request: Request) -> Answer:
        if not request.path.startswith(("/api/", "/apis/")):
            return self._meta(request)
        route = parse(request.path)
        if route is None or not route.plural:
            found = discovery.answer(self.registry, request)
            if found is None:
                raise no_such_resource()
            return found
        resource = self.registry.find(route.group, route.version, route.plural)
        if resource is None:
            raise no_such_resource()
        if resource.namespaced != bool(route.namespace) and (route.namespace or route.name):
            raise no_such_resource()
        if route.subresource and not any(sub.name == route.subresource for sub in resource.subresources):
            raise no_such_resource()
        return self._resource(route, resource, request)

    def _meta(self, request: Request) -> Answer:
        path = request.path.rstrip("/")
        if path in ("/healthz", "/readyz", "/livez") or path.startswith(("/healthz/", "/readyz/", "/livez/")):
            return Response(200, b"ok", content_type="text/plain; charset=utf-8")
        found = discovery.answer(self.registry, request) or openapi.answer(self.registry, request)
        if found is None:
            raise no_such_resource()
        return found

    def _resource(self, route: Route, resource: ResourceType, request: Request) -> Answer:
        if route.subresource not in ("", "status"):
            return self._subresource(route, request)
        if resource.verbs == CREATE_ONLY:
            if request.method != "POST" or route.name:
                raise method_not_allowed()
            sent = self._body_as(request, resource.api_version, resource.kind)
            body = review(resource.kind, resource.api_version, sent, request.user, self.tokens)
            return json_response(201, body)
        verbs = FOUND_VERBS if route.name else COLLECTION_VERBS
        verb = verbs.get(request.method, "")
        if verb == "list" and "list" not in resource.verbs:
            raise method_not_allowed()
        if not verb or (verb not in resource.verbs and verb != "list"):
            raise method_not_allowed()
        if route.subresource == "status" and verb not in ("get", "update", "patch"):
            raise method_not_allowed()
        if verb == "list":
            if request.flag("watch"):
                return self.reads.watch(resource, route.namespace, request)
            return self.reads.listing(resource, route.namespace, request)
        key = key_of(route.namespace, route.name)
        if verb == "get":
            return self.reads.get(resource, key, route.name, request)
        if resource.namespaced and not route.namespace:
            raise method_not_allowed()
        dry_run = self._dry_run(request)
        if verb == "create":
            made = self.create(resource, route.namespace, self._body(request), dry_run=dry_run)
            return self.reads.render(resource, made, request, 201)
        if verb == "update":
            body = self._body(request)
            obj, new = self.writes.update(
                resource,
                route.namespace,
                route.name,
                lambda old: body,
                subresource=route.subresource,
                dry_run=dry_run,
                create_with=body,
            )
            return self.reads.render(resource, obj, request, 201 if new else 200)
        if verb == "patch":
            return self._patch(route, resource, request, dry_run)
        if verb == "delete":
            return self._delete(route, resource, request)
        return self._delete_collection(route, resource, request)

    def create(self, resource: ResourceType, namespace: str, obj: Obj, *, dry_run: bool = False) -> Obj:
        """Create an object.

        A new namespace gets its default objects at once, so that pods can be created without a wait.

        Raises:
            StatusError: it is refused.
        """
        made = self.writes.create(resource, namespace, obj, dry_run=dry_run)
        if resource.storage == "namespaces" and not dry_run:
            self.furnish(made["metadata"]["name"])
        return made

    def furnish(self, namespace: str) -> None:
        """Create a namespace's default service account and the ConfigMap of the certificate authority, if missing."""
        wanted: list[tuple[str, str, Obj]] = [("serviceaccounts", "default", {})]
        if self.root_ca:
            note = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints."
            meta = {"annotations": {"kubernetes.io/description": note}}
            content: Obj = {"metadata": meta, "data": {"ca.crt": self.root_ca}}
            wanted.append(("configmaps", "kube-root-ca.crt", content))
        for storage, name, content in wanted:
            resource = self.registry.of_storage(storage)
            if resource is not None and f"{namespace}/{name}" not in self.store.define(storage).items:
                named = {**content.get("metadata", {}), "name": name}
                self.writes.create(resource, namespace, {**content, "metadata": named})

    def _subresource(self, route: Route, request: Request) -> Answer:
        name, dry_run = route.subresource, self._dry_run(request)
        if name in ("log", "exec", "attach"):
            if request.method not in (("GET",) if name == "log" else ("GET", "POST")):
                raise method_not_allowed()
            return self.pods.proxy(route.namespace, route.name, name, request.query, request.raw_query)
        if name == "finalize":
            if request.method != "PUT":
                raise method_not_allowed()
            return self._finalize(route, request, dry_run)
        if request.method != "POST":
            raise method_not_allowed()
        body = self._body_as(request, *_SENT_TO[name])
        if name == "token":
            if self.tokens is None:
                raise no_such_resource()
            return json_response(201, self.tokens.request(route.namespace, route.name, body, dry_run=dry_run))
        act = self.pods.bind if name == "binding" else self.pods.evict
        return json_response(201, act(route.namespace, route.name, body, dry_run=dry_run))

    def _finalize(self, route: Route, request: Request, dry_run: bool) -> Answer:
        resource = self.registry.of_storage("namespaces")
        item = self.store.define("namespaces").items.get(route.name)
        if resource is None or item is None:
            raise not_found("namespaces", "", route.name)
        old, new = item.object(), item.object()
        new["spec"] = self._body_as(request, "v1", "Namespace").get("spec") or {}
        return self.reads.render(resource, self.writes.commit(resource, item, new, old, dry_run=dry_run), request)

    def _patch(self, route: Route, resource: ResourceType, request: Request, dry_run: bool) -> Answer:
        content_type = request.headers.get("content-type", "")
        if "force" in request.query and not content_type.startswith(APPLY_PATCH):
            error = forbidden_field("force", "may not be specified for non-apply patch")
            raise invalid_object("PatchOptions", "meta.k8s.io", "", [error])
        if request.query.get("force", "true").lower() not in ("true", "false", "1", "0"):
            raise bad_request("force has to be true or false")
        change = change_for(content_type, request.body, custom=resource.custom)
        self.context.patching = not content_type.startswith(APPLY_PATCH)
        applied: Obj | None = None
        if content_type.startswith(APPLY_PATCH):
            if not request.query.get("fieldManager"):
                raise bad_request(
                    'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'
                )
            applied = applied_object(request.body)
            if not (applied.get("kind") and applied.get("apiVersion")):
                raise bad_request(f"invalid object type: {applied.get('apiVersion')}, Kind={applied.get('kind')}")
            items = self.store.define(resource.storage).items
            if key_of(route.namespace, route.name) not in items:
                applied.setdefault("metadata", {}).setdefault("name", route.name)
                made = self.create(resource, route.namespace, applied, dry_run=dry_run)
                return self.reads.render(resource, made, request, 201)
        obj, _ = self.writes.update(
            resource, route.namespace, route.name, change, subresource=route.subresource, dry_run=dry_run
        )
        return self.reads.render(resource, obj, request)

    def _delete(self, route: Route, resource: ResourceType, request: Request) -> Answer:
        options = read_options(request)
        if resource.storage == "namespaces" and route.name in ("default", "kube-system", "kube-public"):
            raise forbidden("namespaces", "", route.name, "this namespace may not be deleted")
        key = key_of(route.namespace, route.name)
        obj, gone = self.deletes.delete(resource, key, route.name, options)
        code = 202 if not gone and options.accepted else 200
        if gone and not resource.strategy.returns_deleted:
            meta = obj["metadata"]
            return json_response(200, success(resource.plural, resource.group, meta["name"], meta["uid"]))
        return self.reads.render(resource, obj, request, code)

    def _delete_collection(self, route: Route, resource: ResourceType, request: Request) -> Answer:
        options = read_options(request)
        listing = self.reads.listing(resource, route.namespace, request)
        selection = self.reads.selection(resource, route.namespace, request)
        for item in self.reads.select_items(resource, selection):
            self.deletes.delete(resource, item.key, item.name, options)
        return listing

    def _dry_run(self, request: Request) -> bool:
        self._check_write_options(request)
        value = request.query.get("dryRun")
        if value not in (None, "", "All"):
            error = unsupported("dryRun", value, ["All"])
            raise invalid_object("CreateOptions", "meta.k8s.io", "", [error])
        return value == "All"

    def _check_write_options(self, request: Request) -> None:
        errors = []
        validation, manager = request.query.get("fieldValidation", ""), request.query.get("fieldManager", "")
        if validation not in ("", "Strict", "Warn", "Ignore"):
            errors.append(unsupported("fieldValidation", validation, ["", "Ignore", "Strict", "Warn"]))
        if len(manager) > MANAGER_CHARACTERS_MAX or not manager.isprintable():
            what = f"must be at most {MANAGER_CHARACTERS_MAX} printable characters"
            errors.append(invalid("fieldManager", manager, what))
        if errors:
            raise invalid_object("CreateOptions", "meta.k8s.io", "", errors)

    def _body_as(self, request: Request, api_version: str, kind: str) -> Obj:
        """Return a body that is not stored, such as a TokenRequest, as the kind that its path requires."""
        body = self._body(request)
        for field, expected in (("apiVersion", api_version), ("kind", kind)):
            if body.get(field) not in (None, "", expected):
                raise bad_request(f"{field} is {body[field]!r}; this path takes a {kind} of {api_version}")
        return received(self.context, body, api_version, kind)

    def _body(self, request: Request) -> Obj:
        media = request.headers.get("content-type", "application/json").partition(";")[0].strip()
        if media == protobuf.MEDIA_TYPE:
            return protobuf.decode_body(request.body)
        if media != "application/json":
            raise unsupported_media_type(["application/json"])
        try:
            return read_object(request.body)
        except BodyError as error:
            raise bad_request(f"couldn't get version/kind; {error}") from None
