"""Parses paths of the Kubernetes API."""

from __future__ import annotations

import dataclasses
import functools
from urllib.parse import unquote


@dataclasses.dataclass(frozen=True)
class Route:
    """The parts of a path below /api or /apis; missing parts are empty."""

    group: str
    version: str
    namespace: str = ""
    plural: str = ""
    name: str = ""
    subresource: str = ""
    rest: str = ""


@functools.lru_cache(maxsize=1024)
def parse(path: str) -> Route | None:
    """Parse a path; None if it is not a resource path."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "api":
        group, rest = "", parts[1:]
    elif parts[0] == "apis" and len(parts) >= 2:
        group, rest = parts[1], parts[2:]
    else:
        return None
    if not rest:
        return None
    version, rest = rest[0], rest[1:]
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    padded = [*rest, "", "", ""]
    return Route(group, version, namespace, padded[0], padded[1], padded[2], "/".join(rest[3:]))
