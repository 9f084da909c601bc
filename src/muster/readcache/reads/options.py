"""Parameters of a list or a watch, and kube-apiserver's rules for them.

Sources: k8s.io/apimachinery pkg/apis/meta/internalversion (defaults.go and validation/validation.go).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from muster.readcache.reads.statuses import invalid_options
from muster.readcache.reads.targets import is_true

EXACT: Final = "Exact"
NOT_OLDER_THAN: Final = "NotOlderThan"

_INTEGER: Final = re.compile(r"-?[0-9]{1,15}")
_FORBIDDEN: Final = "FieldValueForbidden"
_UNSUPPORTED: Final = "FieldValueNotSupported"


@dataclass(frozen=True, slots=True)
class ListOptions:
    """Parameters of a list or a watch.

    Attributes:
        limit: 0 for none.
        timeout_s: 0 for the server's default; of a list it has no meaning.
        initial_events: None if the client did not say.
    """

    watch: bool = False
    version: str = ""
    match: str = ""
    limit: int = 0
    token: str = ""
    labels: str = ""
    fields: str = ""
    timeout_s: int = 0
    bookmarks: bool = False
    initial_events: bool | None = None


def read_options(query: Mapping[str, str]) -> ListOptions | None:
    """Returns the parameters with their defaults: a watch from "" or "0" asks for the state first.

    None if a number is not one that this cache reads: the API server then answers.
    """
    limit, timeout = query.get("limit", "0"), query.get("timeoutSeconds", "0")
    if not _INTEGER.fullmatch(limit) or not _INTEGER.fullmatch(timeout):
        return None
    watch, version = is_true(query.get("watch")), query.get("resourceVersion", "")
    match, sent = query.get("resourceVersionMatch", ""), query.get("sendInitialEvents")
    initial = None if sent is None else is_true(sent)
    if watch and version in ("", "0") and initial is None and not match:
        match, initial = NOT_OLDER_THAN, True
    return ListOptions(
        watch=watch,
        version=version,
        match=match,
        limit=max(0, int(limit)),
        token=query.get("continue", ""),
        labels=query.get("labelSelector", ""),
        fields=query.get("fieldSelector", ""),
        timeout_s=int(timeout),
        bookmarks=is_true(query.get("allowWatchBookmarks")),
        initial_events=initial,
    )


def check_options(options: ListOptions) -> None:
    """Checks the combination of parameters.

    Raises:
        Refusal: 422, as kube-apiserver refuses it.
    """
    problems = _watch_problems(options) if options.watch else _list_problems(options)
    if problems:
        raise invalid_options(problems)


def _list_problems(options: ListOptions) -> list[tuple[str, str, str]]:
    problems = []
    match = options.match
    if match:
        if not options.version:
            problems.append(_match("is forbidden unless resourceVersion is provided"))
        if options.token:
            problems.append(_match("is forbidden when continue is provided"))
        if match not in (EXACT, NOT_OLDER_THAN):
            problems.append(_unsupported(match, '"Exact", "NotOlderThan", ""'))
        if match == EXACT and options.version == "0":
            problems.append(_match('"exact" is forbidden for resourceVersion "0"'))
    if options.initial_events is not None:
        problems.append(
            (_FORBIDDEN, "sendInitialEvents", "Forbidden: sendInitialEvents is forbidden for list"),
        )
    return problems


def _watch_problems(options: ListOptions) -> list[tuple[str, str, str]]:
    problems = []
    match = options.match
    if options.initial_events is not None and match != NOT_OLDER_THAN:
        text = f"Forbidden: sendInitialEvents requires setting resourceVersionMatch to {NOT_OLDER_THAN}"
        problems.append((_FORBIDDEN, "resourceVersionMatch", text))
    if match:
        if options.initial_events is None:
            problems.append(_match("is forbidden for watch unless sendInitialEvents is provided"))
        if match != NOT_OLDER_THAN:
            problems.append(_unsupported(match, '"NotOlderThan"'))
        if options.token:
            problems.append(_match("is forbidden when continue is provided"))
    return problems


def _match(text: str) -> tuple[str, str, str]:
    return _FORBIDDEN, "resourceVersionMatch", f"Forbidden: resourceVersionMatch {text}"


def _unsupported(match: str, supported: str) -> tuple[str, str, str]:
    message = f'Unsupported value: "{match}": supported values: {supported}'
    return _UNSUPPORTED, "resourceVersionMatch", message
