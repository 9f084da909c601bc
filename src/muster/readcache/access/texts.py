"""Refusals with the texts of kube-apiserver."""

from __future__ import annotations

from muster.readcache.access.attributes import Attributes
from muster.readcache.request import Refusal
from muster.readcache.wire.selectable import go_quoted

_SANITIZED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def forbidden(user: str, attributes: Attributes, reason: str) -> Refusal:
    """Return the refusal of a request that no authorizer allowed.

    Source: ForbiddenStatusError in k8s.io/apiserver, pkg/endpoints/handlers/responsewriters/errors.go.

    Args:
        user: name of the user.
        attributes: what the user wanted to do.
        reason: reason of the authorizers, "" for none.
    """
    what = attributes.resource + (f"/{attributes.subresource}" if attributes.subresource else "")
    where = f"in the namespace {go_quoted(attributes.namespace)}" if attributes.namespace else "at the cluster scope"
    group = go_quoted(attributes.group)
    text = f"User {go_quoted(user)} cannot {attributes.verb} resource {go_quoted(what)} in API group {group} {where}"
    text = text.translate(_SANITIZED)
    if reason:
        text = f"{text}: {reason}"
    kind = f"{attributes.resource}.{attributes.group}" if attributes.group else attributes.resource
    named = f"{kind} {go_quoted(attributes.name)}" if attributes.name else kind
    details = {"name": attributes.name, "group": attributes.group, "kind": attributes.resource}
    return Refusal(
        403,
        "Forbidden",
        f"{named} is forbidden: {text}",
        details={key: value for key, value in details.items() if value},
    )


def unavailable(why: str) -> Refusal:
    """Return the refusal of a request whose review failed. The client retries."""
    return Refusal(503, "ServiceUnavailable", f"the read cache cannot check this request: {why}", retry_after_s=1)
