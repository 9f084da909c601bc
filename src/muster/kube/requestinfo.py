"""Parses the path and query of a request as kube-apiserver does (apiserver, pkg/endpoints/request/requestinfo.go)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

_VERBS: Final = {
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
    "GET": "get",
    "HEAD": "get",
}
_NAMESPACE_BELOW: Final = frozenset({"status", "finalize"})
_FALSE: Final = frozenset({"", "0", "false"})


class RequestInfo(NamedTuple):
    """What a request is about. All fields but `verb` are "" if it is not about a resource."""

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


def request_info(method: str, path: str, query: Mapping[str, str]) -> RequestInfo:
    """Return the verb and the object of a request.

    Args:
        method: HTTP method.
        path: decoded path, such as `/api/v1/namespaces/a/pods/b/status`.
        query: decoded parameters. `watch` and a fieldSelector on metadata.name change the verb and the name.
    """
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return RequestInfo(method.lower())
    verb = _VERBS.get(method, "")
    if rest[0] in ("watch", "proxy") and len(rest) > 1:
        verb, rest = rest[0], rest[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in _NAMESPACE_BELOW:
            rest = rest[2:]
    resource, name, below = rest[0], rest[1] if len(rest) > 1 else "", rest[2] if len(rest) > 2 else ""
    if not name and verb == "get":
        verb = "watch" if query.get("watch", "").lower() not in _FALSE else "list"
    elif not name and verb == "delete":
        verb = "deletecollection"
    if not name and verb in ("list", "watch", "deletecollection"):
        terms = dict(term.partition("=")[::2] for term in query.get("fieldSelector", "").split(",") if "!=" not in term)
        name = terms.get("metadata.name", "").lstrip("=")
    return RequestInfo(verb, group, version, resource, below, namespace, name)
