"""CREATE, UPDATE and PATCH: decoding, defaulting, validation, optimistic concurrency, storing."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from muster.embedded.apiserver.status import (
    StatusError,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    invalid_object,
    not_found,
    stale,
)
from muster.embedded.apiserver.types import event_versions, names
from muster.embedded.apiserver.types.registry import ResourceType
from muster.embedded.apiserver.types.strategy import Context
from muster.embedded.apiserver.verbs.finish import convert
from muster.embedded.apiserver.verbs.incoming import received
from muster.embedded.item import Item
from muster.embedded.objects import Obj, items, metadata, section, timestamp

GENERATED_BASE_MAX = 58
GENERATE_ATTEMPTS = 8
Change = Callable[[Obj], Obj]


def key_of(namespace: str, name: str) -> str:
    """Return the store's key of an object."""
    return f"{namespace}/{name}" if namespace else name


class Writes:
    """The verbs that create and update."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def create(self, resource: ResourceType, namespace: str, obj: Obj, *, dry_run: bool = False) -> Obj:
        """Create a client's object, and return the stored object.

        Raises:
            StatusError: it is refused.
        """
        context, strategy = self._context, resource.strategy
        obj = self.incoming(resource, namespace, obj)
        meta = metadata(obj)
        self._check_namespace(resource, namespace, meta)
        if meta.get("resourceVersion") not in (None, "", "0"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        for name in ("selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "generation"):
            meta.pop(name, None)
        generated = self._name(resource, namespace, meta)
        meta.pop("resourceVersion", None)
        meta["uid"] = str(uuid.UUID(int=context.random.getrandbits(128), version=4))
        meta["creationTimestamp"] = timestamp(context.clock.now())
        if strategy.generation:
            meta["generation"] = 1
        strategy.default(context, obj)
        strategy.prepare_create(context, obj)
        strategy.admit_create(context, obj, dry_run)
        problems = self._name_problems(resource, meta.get("name", ""))
        errors = names.validate_metadata(obj, problems) + strategy.validate(context, obj, None)
        if errors:
            raise invalid_object(resource.kind, resource.group, meta.get("name", ""), errors)
        key = key_of(namespace, meta["name"])
        if key in self._items(resource):
            if generated:
                raise StatusError(
                    409,
                    "AlreadyExists",
                    f'{resource.plural} "{meta["name"]}" already exists, the server was not able to generate a unique '
                    "name for the object",
                    {"name": meta["name"], "kind": resource.plural, "retryAfterSeconds": 1},
                )
            raise already_exists(resource.plural, resource.group, meta["name"])
        if dry_run:
            return obj
        return self._store(resource, key, obj)

    def update(
        self,
        resource: ResourceType,
        namespace: str,
        name: str,
        change: Change,
        *,
        subresource: str = "",
        dry_run: bool = False,
        create_with: Obj | None = None,
    ) -> tuple[Obj, bool]:
        """Update an object by `change`, which gets a copy of the stored one. Returns the object, and whether it is new.

        Raises:
            StatusError: it is refused.
        """
        key = key_of(namespace, name)
        item = self._items(resource).get(key)
        if item is None:
            if create_with is not None and resource.strategy.create_on_update and not subresource:
                metadata(create_with).pop("resourceVersion", None)
                return self.create(resource, namespace, create_with, dry_run=dry_run), True
            raise not_found(resource.plural, resource.group, name)
        old = item.object()
        new = self.incoming(resource, namespace, change(convert(resource, item.object())))
        self._check_identity(resource, name, new, old)
        new = self._prepare(resource, new, old, subresource)
        return self.commit(resource, item, new, old, dry_run=dry_run), False

    def commit(self, resource: ResourceType, item: Item, new: Obj, old: Obj, *, dry_run: bool = False) -> Obj:
        """Store an object if it changed. If it is being deleted and has no finalizers left, remove it."""
        if new == old:
            return old
        if dry_run:
            return new
        meta = section(new, "metadata")
        done = meta.get("deletionTimestamp") and not items(meta, "finalizers")
        held = resource.storage == "namespaces" and items(section(new, "spec"), "finalizers")
        if done and not held and not meta.get("deletionGracePeriodSeconds"):
            return self._context.store.delete(resource.storage, item.key, new).object()
        return self._store(resource, item.key, new)

    def incoming(self, resource: ResourceType, namespace: str, obj: Obj) -> Obj:
        """Check a client's object against the path, and convert it to the stored version.

        Raises:
            StatusError: 400 for another kind or another namespace.
        """
        for name in ("apiVersion", "kind"):
            if not isinstance(obj.get(name, ""), str | None):
                raise bad_request(f"couldn't get version/kind; json: {name} has to be a string")
        obj = self._typed(resource, obj)
        if resource.group == "events.k8s.io" and obj.get("apiVersion") != "v1":
            obj = event_versions.to_core_v1(obj)
        expected = "v1" if resource.storage == "events" else resource.api_version
        found = obj.get("apiVersion") or expected
        kind = obj.get("kind") or resource.kind
        if found != expected and not resource.custom:
            raise bad_request(
                f'{kind} in version "{found}" cannot be handled as a {resource.kind}: no kind "{kind}" is registered '
                f'for version "{found}" in scheme "pkg/runtime/scheme.go:111"'
            )
        if found != expected:
            raise bad_request(
                f"the API version in the data ({found}) does not match the expected API version ({expected})"
            )
        if kind != resource.kind:
            raise bad_request(
                f'{kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
                f"no kind {kind!r} is registered for this path".replace("'", '"')
            )
        ordered: Obj = {"kind": kind, "apiVersion": found, "metadata": obj.get("metadata") or {}}
        ordered.update((key, value) for key, value in obj.items() if key not in ordered)
        meta = ordered["metadata"]
        meta.pop("managedFields", None)
        meta.pop("selfLink", None)
        for name in ("labels", "annotations", "ownerReferences", "finalizers"):
            if name in meta and not meta[name]:
                del meta[name]
        if resource.namespaced:
            if meta.get("namespace") and meta["namespace"] != namespace:
                raise bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
            meta["namespace"] = namespace
        elif meta.get("namespace"):
            raise bad_request("namespace is not allowed on this type")
        return ordered

    def _typed(self, resource: ResourceType, obj: Obj) -> Obj:
        """Check the types of all fields of a built-in kind, and those of the metadata of a custom one."""
        context = self._context
        if not resource.custom:
            version = "v1" if obj.get("apiVersion") == "v1" else resource.api_version
            return received(context, obj, version, resource.kind)
        meta = obj.get("metadata")
        if meta is None:
            return obj
        if not isinstance(meta, dict):
            raise bad_request("metadata must be an object")
        return {**obj, "metadata": received(context, meta, resource.api_version, resource.kind, "meta.v1.ObjectMeta")}

    def _check_identity(self, resource: ResourceType, name: str, new: Obj, old: Obj) -> None:
        meta, before = new["metadata"], old["metadata"]
        if not meta.get("name"):
            raise bad_request(f"the name of the object ({name} based on URL) was undeterminable: name must be provided")
        if meta["name"] != name:
            raise bad_request(f"the name of the object ({meta['name']}) does not match the name on the URL ({name})")
        if meta.get("uid") and meta["uid"] != before["uid"]:
            key = f"/registry/{resource.plural}/{key_of(before.get('namespace', ''), name)}"
            raise stale(resource.plural, resource.group, name, key, meta["uid"], before["uid"])
        version = meta.get("resourceVersion")
        if version in (None, "", "0"):
            if not resource.strategy.unconditional_update:
                error = invalid("metadata.resourceVersion", 0, "must be specified for an update")
                raise invalid_object(resource.plural, resource.group, name, [error])
        elif version != before["resourceVersion"]:
            raise conflict(resource.plural, resource.group, name)
        meta["resourceVersion"] = before["resourceVersion"]
        meta["uid"] = before["uid"]
        for field in ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
            meta.pop(field, None)
            if field in before:
                meta[field] = before[field]
        if before.get("generateName"):
            meta.setdefault("generateName", before["generateName"])

    def _prepare(self, resource: ResourceType, new: Obj, old: Obj, subresource: str) -> Obj:
        context, strategy = self._context, resource.strategy
        if subresource == "status":
            new = strategy.prepare_status(context, new, old)
            errors = names.validate_metadata_update(new, old) + strategy.validate_status(context, new, old)
        else:
            if resource.has_status:
                if "status" in old:
                    new["status"] = old["status"]
                else:
                    new.pop("status", None)
            strategy.default(context, new)
            strategy.prepare_update(context, new, old)
            if strategy.generation and strategy.spec_changed(new, old):
                new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
            errors = names.validate_metadata_update(new, old) + strategy.validate(context, new, old)
        if errors:
            raise invalid_object(resource.kind, resource.group, new["metadata"]["name"], errors)
        return new

    def _store(self, resource: ResourceType, key: str, obj: Obj) -> Obj:
        self._context.store.put(resource.storage, key, obj)
        return obj

    def _items(self, resource: ResourceType) -> dict[str, Item]:
        return self._context.store.define(resource.storage, resource.describe, resource.indexes).items

    def _name_problems(self, resource: ResourceType, name: str) -> list[str]:
        if resource.strategy.path_names:
            return names.path_segment_problems(name)
        return names.label_problems(name) if resource.strategy.label_names else names.subdomain_problems(name)

    def _name(self, resource: ResourceType, namespace: str, meta: Obj) -> bool:
        prefix = meta.get("generateName")
        if meta.get("name") or not prefix:
            return False
        existing = self._items(resource)
        for _ in range(GENERATE_ATTEMPTS):
            suffix = "".join(self._context.random.choice(names.SUFFIX_ALPHABET) for _ in range(5))
            meta["name"] = prefix[:GENERATED_BASE_MAX] + suffix
            if key_of(namespace, meta["name"]) not in existing:
                break
        return True

    def _check_namespace(self, resource: ResourceType, namespace: str, meta: Obj) -> None:
        if not resource.namespaced:
            return
        found = self._context.store.define("namespaces").items.get(namespace)
        if found is None:
            raise not_found("namespaces", "", namespace)
        if found.terminating:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
            raise forbidden(resource.plural, resource.group, meta.get("name", ""), why, [cause])
