"""DELETE: grace periods, finalizers, preconditions, propagation.

Source: kubernetes k8s.io/apiserver `pkg/registry/rest/delete.go`, `pkg/registry/generic/registry/store.go`.
"""

from __future__ import annotations

from muster.embedded.apiserver.request import Request
from muster.embedded.apiserver.status import (
    bad_request,
    conflict,
    invalid,
    invalid_object,
    not_found,
    unsupported,
)
from muster.embedded.apiserver.types.registry import ResourceType
from muster.embedded.apiserver.types.strategy import Context, DeleteOptions
from muster.embedded.apiserver.verbs import protobuf
from muster.embedded.apiserver.verbs.bodies import read_object
from muster.embedded.apiserver.verbs.incoming import typed
from muster.embedded.objects import Obj, items, section, timestamp

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
_POLICIES = ("Background", "Foreground", "Orphan")


def read_options(request: Request) -> DeleteOptions:
    """Read the options of a DELETE from its body, else from its query.

    Raises:
        StatusError: 400 or 422 if they are not valid.
    """
    body: Obj = {}
    if request.body.strip():
        try:
            binary = request.headers.get("content-type", "").startswith(protobuf.MEDIA_TYPE)
            body = protobuf.decode_body(request.body) if binary else read_object(request.body)
        except ValueError as error:
            raise bad_request(f"couldn't decode the DeleteOptions: {error}") from None
    return options_of(body, request)


def options_of(body: Obj, request: Request | None = None) -> DeleteOptions:
    """Read DeleteOptions.

    Raises:
        StatusError: 422 if they are not valid.
    """
    if body.get("kind") not in (None, "", "DeleteOptions"):
        raise bad_request(f"DeleteOptions are wanted, not a {body['kind']}")
    body = typed(body, "meta.k8s.io/v1", "DeleteOptions")
    grace = body.get("gracePeriodSeconds")
    policy = body.get("propagationPolicy") or ""
    errors = [unsupported("dryRun", value, ["All"]) for value in body.get("dryRun") or () if value != "All"]
    if body.get("orphanDependents") is not None and policy:
        errors.append(invalid("propagationPolicy", policy, "orphanDependents and propagationPolicy exclude each other"))
    if errors:
        raise invalid_object("DeleteOptions", "meta.k8s.io", "", errors)
    dry_run = bool(body.get("dryRun"))
    if request is not None:
        if grace is None:
            grace = request.number("gracePeriodSeconds")
        policy = policy or request.query.get("propagationPolicy", "")
        dry_run = dry_run or bool(request.query.get("dryRun"))
    if body.get("orphanDependents") is not None and not policy:
        policy = "Orphan" if body["orphanDependents"] else "Background"
    if policy and policy not in _POLICIES:
        error = unsupported("propagationPolicy", policy, ["Foreground", "Background", "Orphan", "nil"])
        raise invalid_object("DeleteOptions", "meta.k8s.io", "", [error])
    if grace is not None and grace < 0:
        grace = 1  # as kube-apiserver since 1.24: negative means one second
    conditions = section(body, "preconditions")
    return DeleteOptions(
        grace,
        policy,
        conditions.get("uid") or "",
        conditions.get("resourceVersion") or "",
        dry_run,
        body.get("orphanDependents") is False,
    )


class Deletes:
    """The verb that deletes."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def delete(self, resource: ResourceType, key: str, name: str, options: DeleteOptions) -> tuple[Obj, bool]:
        """Delete an object, or begin its deletion. Returns its last state, and whether it is removed.

        Raises:
            StatusError: 404; or 409 if a precondition fails.
        """
        item = self._context.store.define(resource.storage).items.get(key)
        if item is None:
            raise not_found(resource.plural, resource.group, name)
        obj = item.object()
        meta = obj["metadata"]
        self._check(resource, name, meta, options)
        grace = resource.strategy.grace_s(obj, options.grace_s)
        before = list(items(meta, "finalizers"))
        finalizers = self._finalizers(before, options.propagation)
        terminating = bool(meta.get("deletionTimestamp"))
        holds = bool(finalizers) or resource.storage == "namespaces"
        if not grace and not holds:
            if options.dry_run:
                return obj, True
            if grace is not None:
                meta["deletionGracePeriodSeconds"] = 0
                meta["deletionTimestamp"] = timestamp(self._context.clock.now())
                if not terminating and meta.get("generation"):
                    meta["generation"] += 1
            return self._context.store.delete(resource.storage, key, obj).object(), True
        if terminating:
            current = meta.get("deletionGracePeriodSeconds") or 0
            if finalizers == before and (grace is None or grace >= current):
                return obj, False
            grace = min(grace or 0, current)
        meta["deletionTimestamp"] = timestamp(self._context.clock.now() + (grace or 0))
        meta["deletionGracePeriodSeconds"] = grace or 0
        if resource.storage == "namespaces":
            del meta["deletionGracePeriodSeconds"]
            obj.setdefault("status", {})["phase"] = "Terminating"
        if not terminating and meta.get("generation"):
            meta["generation"] += 1
        if finalizers:
            meta["finalizers"] = finalizers
        else:
            meta.pop("finalizers", None)
        if not options.dry_run:
            self._context.store.put(resource.storage, key, obj)
        return obj, False

    def _check(self, resource: ResourceType, name: str, meta: Obj, options: DeleteOptions) -> None:
        if options.uid and options.uid != meta["uid"]:
            why = (
                f"the UID in the precondition ({options.uid}) does not match the UID in record ({meta['uid']}). "
                "The object might have been deleted and then recreated"
            )
            raise conflict(resource.kind, resource.group, name, why)
        if options.version and options.version != meta["resourceVersion"]:
            why = (
                f"the ResourceVersion in the precondition ({options.version}) does not match the ResourceVersion in "
                f"record ({meta['resourceVersion']}). The object might have been modified"
            )
            raise conflict(resource.kind, resource.group, name, why)

    def _finalizers(self, before: list[str], propagation: str) -> list[str]:
        if not propagation:
            return before
        kept = [name for name in before if name not in (FOREGROUND, ORPHAN)]
        if propagation == "Foreground":
            kept.append(FOREGROUND)
        elif propagation == "Orphan":
            kept.append(ORPHAN)
        return kept
