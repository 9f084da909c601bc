"""Finds what a request reads, and which requests the cache leaves to the API server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from muster.readcache.kinds import CachedKind
from muster.readcache.reads.accept import chosen_media, is_pretty
from muster.readcache.request import Request, Target

KindKey = tuple[str, str, str]
"""Group, version and plural."""

_SEGMENT: Final = re.compile(r"[A-Za-z0-9._:~-]{1,253}")
_LIST_PARAMETERS: Final = frozenset(
    {
        "labelSelector",
        "fieldSelector",
        "watch",
        "allowWatchBookmarks",
        "resourceVersion",
        "resourceVersionMatch",
        "timeoutSeconds",
        "limit",
        "continue",
        "sendInitialEvents",
        "pretty",
        "timeout",
    }
)
_GET_PARAMETERS: Final = frozenset({"resourceVersion", "pretty", "timeout"})
_TIMEOUT: Final = re.compile(r"([1-9][0-9]{0,5})(s|m|h)")
_TIMEOUT_MIN_S: Final = 10


def kind_key(kind: CachedKind) -> KindKey:
    """Returns the key under which `parse_target` looks a kind up."""
    resource = kind.resource
    return resource.group, resource.version, resource.plural


def parse_target(request: Request, kinds: Mapping[KindKey, CachedKind]) -> Target | None:
    """Returns what a request reads, None if it must be forwarded.

    Forwarded are:
    - other methods than GET, and upgrades;
    - kinds that are not cached, subresources, `/watch/` paths, and paths with escapes;
    - forms that the cache does not keep: Table, PartialObjectMetadata, YAML, CBOR, indented JSON;
    - parameters that the cache does not know, and timeouts that a wait for a version might exceed.
    """
    if request.method != "GET" or request.header("upgrade"):
        return None
    target = _target_of_path(request, kinds)
    if target is None:
        return None
    query = request.query
    known = _GET_PARAMETERS if target.verb == "get" else _LIST_PARAMETERS
    if not known.issuperset(query) or not _long_enough(query.get("timeout")):
        return None
    watch = target.verb == "watch"
    media = chosen_media(request.header("accept"), target.kind, watch=watch)
    if media is None:
        return None
    if is_pretty(query.get("pretty"), request.header("user-agent")):
        return None
    return target


def _target_of_path(request: Request, kinds: Mapping[KindKey, CachedKind]) -> Target | None:
    path = request.path
    if request.target.partition("?")[0] != path:
        return None
    parts = path.split("/")[1:]
    if not all(map(_SEGMENT.fullmatch, parts)) or any(part in (".", "..") for part in parts):
        return None
    if parts[:1] == ["api"]:
        group, rest = "", parts[1:]
    elif parts[:1] == ["apis"] and len(parts) > 1:
        group, rest = parts[1], parts[2:]
    else:
        return None
    if len(rest) < 2:
        return None
    version, rest = rest[0], rest[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    kind = kinds.get((group, version, rest[0]))
    if kind is None or len(rest) > 2 or (namespace and not kind.resource.namespaced):
        return None
    if len(rest) == 2:
        if kind.resource.namespaced and not namespace:
            return None
        return Target("get", kind, namespace, rest[1])
    watch = is_true(request.query.get("watch"))
    return Target("watch" if watch else "list", kind, namespace)


def is_true(value: str | None) -> bool:
    """Returns a parameter as a boolean: everything but "0" and "false" is true, an empty value too."""
    return value is not None and value != "0" and value.lower() != "false"


def _long_enough(timeout: str | None) -> bool:
    if timeout is None:
        return True
    found = _TIMEOUT.fullmatch(timeout)
    return found is not None and int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]] >= _TIMEOUT_MIN_S
