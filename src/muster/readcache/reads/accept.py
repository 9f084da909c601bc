"""Chooses the media type of an answer from the Accept header, as kube-apiserver does.

Source: k8s.io/apiserver pkg/endpoints/handlers/negotiation, and github.com/munnerz/goautoneg, whose order of clauses is
copied with its flaw: its comparison is not transitive, so the order depends on the sorting algorithm.
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

from muster.readcache.kinds import CachedKind
from muster.readcache.media import MediaType

CLAUSES_MAX: Final = 12
"""Up to this number Go sorts by insertion. Longer headers are forwarded."""

_YAML: Final = "application/yaml"
_SUPPORTED: Final = (MediaType.JSON.value, _YAML, MediaType.PROTOBUF.value)
_ROUTED: Final = frozenset({*_SUPPORTED, "*/*"})
_FORWARDED: Final = frozenset({"as", "g", "v", "sv", "stream", "pretty", "export", "profile"})
_PRETTY_AGENTS: Final = ("curl", "Wget", "Mozilla/5.0")


class Clause(NamedTuple):
    """One media range of an Accept header."""

    type: str
    subtype: str
    quality: float = 1.0
    parameters: tuple[tuple[str, str], ...] = ()

    def covers(self, media_type: str) -> bool:
        """Returns whether a media type lies in this range."""
        main, _, sub = media_type.partition("/")
        return (self.type, self.subtype) in ((main, sub), (main, "*"), ("*", "*"))


def chosen_media(accept: str, kind: CachedKind, *, watch: bool) -> MediaType | None:
    """Returns the media type of the answer, None if the request must be forwarded."""
    return _chosen(accept, kind.protobuf, watch)


def error_media(accept: str, *, watch: bool) -> MediaType | None:
    """Returns the media type of an error before any stream.

    kube-apiserver writes errors about custom resources as protobuf, if that is what the client prefers.
    """
    return _chosen(accept, True, watch)


def is_pretty(query_value: str | None, agent: str) -> bool:
    """Returns whether kube-apiserver indents JSON: if asked, and for browsers and command line tools."""
    if query_value:
        return query_value in ("1", "t", "T", "TRUE", "true", "True")  # strconv.ParseBool
    return agent.startswith(_PRETTY_AGENTS)


@functools.lru_cache(maxsize=1024)
def _chosen(accept: str, protobuf: bool, watch: bool) -> MediaType | None:
    if not accept:
        return MediaType.JSON
    if accept.count(",") >= CLAUSES_MAX or not _routed(accept):
        return None
    for clause in parse_accept(accept):
        for media_type in _SUPPORTED:
            if clause.covers(media_type):
                if media_type == _YAML or _is_special(clause, watch):
                    return None
                if protobuf or media_type != MediaType.PROTOBUF.value:
                    return MediaType(media_type)
    return None


def _routed(accept: str) -> bool:
    """Returns whether go-restful finds a route: it compares the media types as they are written."""
    return any(part.partition(";")[0].strip(" ") in _ROUTED for part in accept.split(","))


def _is_special(clause: Clause, watch: bool) -> bool:
    return any(
        key in _FORWARDED and not (watch and key == "stream" and value == "watch") for key, value in clause.parameters
    )


def parse_accept(header: str) -> list[Clause]:
    """Returns the clauses of an Accept header, the preferred one first."""
    clauses: list[Clause] = []
    for part in header.split(","):
        media, _, rest = part.strip(" ").partition(";")
        main, slash, sub = media.partition("/")
        main = main.strip(" ")
        if not slash or not sub:
            if main != "*":
                continue
            sub = "*"
        elif "/" in sub:
            if sub.partition("/")[2]:
                continue
            sub = sub.rstrip("/")
        _insert(clauses, _with_parameters(main, sub.strip(" "), rest))
    return clauses


def _with_parameters(main: str, sub: str, rest: str) -> Clause:
    quality, parameters = 1.0, {}
    for parameter in rest.split(";"):
        key, _, rest_of_it = parameter.partition("=")
        value, _, more = rest_of_it.partition("=")
        if not rest_of_it or more:
            continue
        key = key.strip(" ")
        if key == "q":
            quality = _quality(value)
        else:
            parameters[key] = value.strip(" ")
    return Clause(main, sub, quality, tuple(parameters.items()))


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _insert(clauses: list[Clause], clause: Clause) -> None:
    place = len(clauses)
    while place and _before(clause, clauses[place - 1]):
        place -= 1
    clauses.insert(place, clause)


def _before(one: Clause, other: Clause) -> bool:
    return (
        one.quality > other.quality
        or (one.type != "*" and other.type == "*")
        or (one.subtype != "*" and other.subtype == "*")
    )
