"""Parses a request into an operation.

A request that two programs could read in two ways is refused: a parameter given twice, a body of another type. What is
sent on is encoded again from what was parsed here, so Prometheus reads what the guard has priced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from muster.telemetry.guard.query.endpoints import ENDPOINTS, LABEL_VALUES, REPEATED, Endpoint
from muster.telemetry.guard.query.errors import BadRequest, NotListed
from muster.telemetry.guard.query.form import decode_pairs
from muster.telemetry.guard.query.operation import LOOKBACK_S, Operation
from muster.telemetry.guard.query.remoteread import decode_read_request
from muster.telemetry.guard.query.times import parse_count, parse_duration, parse_time
from muster.telemetry.promql.errors import BadQuery
from muster.telemetry.promql.expression import Expression, parse_expression, parse_selector
from muster.telemetry.promql.matcher import NAME_LABEL, Matcher
from muster.telemetry.promql.selector import Selector

FORM: Final = "application/x-www-form-urlencoded"
MAX_SELECTORS: Final = 50
"""Selectors in one request."""
MAX_LOOKBACK_S: Final = 3600.0
"""Greatest lookback_delta: an instant selector finds every series that had a sample in this time."""
_MAX_PARAMETERS: Final = 1000
_KEPT_LENGTH: Final = 4096
"""Characters of an expression that is kept after it was parsed."""
_TARGETS: Final = Selector(((Matcher(NAME_LABEL, "=", "up"),),))
"""Each target has one series of this name."""
_VALUES: Final = re.compile(r"/api/v1/label/([^/]+)/values")

Pairs = Iterable[tuple[str, str]]


def parse(method: str, path: str, query_pairs: Pairs, content_type: str, body: bytes, now_s: float) -> Operation:
    """Parse a request.

    Args:
        method: GET or POST.
        path: below the prefix of the API.
        query_pairs: parameters of the query string, decoded.
        content_type: of the body.
        body: of a POST, not compressed (a remote read: as sent).
        now_s: Unix time, for requests without a time.

    Raises:
        BadRequest: the request is not valid, or ambiguous.
        NotListed: the path has no price.
    """
    found = _VALUES.fullmatch(path)
    endpoint = LABEL_VALUES if found else ENDPOINTS.get(path)
    if endpoint is None:
        raise NotListed(path)
    if method not in endpoint.methods:
        raise BadRequest(405, f"use {' or '.join(sorted(endpoint.methods))} for {path}")
    label = found.group(1) if found else ""
    if endpoint.kind == "remote_read":
        return _remote_read(method, path, body, now_s)
    pairs = [*(_form(content_type, body) if method == "POST" else ()), *query_pairs]
    known = tuple(each for each in pairs if each[0] in endpoint.parameters)
    ignored = tuple(dict.fromkeys(name for name, _ in pairs if name not in endpoint.parameters))
    given = _single(known)
    try:
        expression, selectors = _selected(endpoint, given, known)
    except BadQuery as error:
        raise BadRequest(400, f"the query cannot be parsed: {error}") from None
    if len(selectors) > MAX_SELECTORS:
        raise BadRequest(422, f"the request has {len(selectors)} selectors; at most {MAX_SELECTORS} are accepted")
    return Operation(
        kind=endpoint.kind, method=method, path=path, now_s=now_s, parameters=known, ignored=ignored,
        expression=expression, selectors=selectors, label=label, **_numbers(endpoint, given, now_s),
    )  # fmt: skip


def _form(content_type: str, body: bytes) -> tuple[tuple[str, str], ...]:
    if not body:
        return ()
    if content_type.partition(";")[0].strip().lower() != FORM:
        raise BadRequest(415, f"send parameters as {FORM}")
    try:
        return decode_pairs(body.decode("ascii"), _MAX_PARAMETERS)
    except ValueError:
        raise BadRequest(
            400, f"the form is not valid: encode UTF-8 with %, {_MAX_PARAMETERS} parameters at most"
        ) from None


def _single(pairs: Pairs) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in REPEATED:
            continue
        if name in found:
            raise BadRequest(400, f"{name} is given twice (in the address and the body, or in one of them)")
        found[name] = value
    return found


def _selected(
    endpoint: Endpoint, given: Mapping[str, str], pairs: Pairs
) -> tuple[Expression | None, tuple[Selector, ...]]:
    if "query" in endpoint.parameters:
        text = given.get("query", "")
        expression = _parsed(text) if len(text) <= _KEPT_LENGTH else parse_expression(text)
        return expression, expression.selectors
    if endpoint.kind == "rules":
        return None, ()
    if endpoint.kind == "targets":
        return None, (_TARGETS,)
    selectors = tuple(parse_selector(value) for name, value in pairs if name == "match[]")
    if not selectors and endpoint.kind in ("series", "federate"):
        raise BadRequest(400, "no match[] parameter provided")
    return None, selectors


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Expression:
    """Dashboards ask the same again and again."""
    return parse_expression(text)


def _numbers(endpoint: Endpoint, given: Mapping[str, str], now_s: float) -> dict[str, Any]:
    times = {name: parse_time(given[name], name) if given.get(name) else None for name in ("time", "start", "end")}
    start_s, end_s = times["start"], times["end"]
    step_s = 0.0
    if endpoint.kind in ("query", "federate"):
        start_s = end_s = times["time"] if times["time"] is not None else now_s
    if endpoint.kind == "query_range":
        if start_s is None or end_s is None:
            raise BadRequest(400, "a range query needs start and end")
        step_s = parse_duration(given.get("step", ""), "step")
        if step_s < 0.001:
            raise BadRequest(400, f"step={given['step']} is not positive")
    if start_s is not None and end_s is not None and end_s < start_s:
        raise BadRequest(400, "end is before start")
    lookback_s = _positive(given, "lookback_delta", LOOKBACK_S)
    if lookback_s is not None and lookback_s > MAX_LOOKBACK_S:
        raise BadRequest(422, f"lookback_delta is {lookback_s:g} s; at most {MAX_LOOKBACK_S:g} s are accepted")
    return {
        "start_s": start_s,
        "end_s": end_s,
        "step_s": step_s,
        "limit": (parse_count(given["limit"], "limit") or None) if given.get("limit") else None,
        "timeout_s": _positive(given, "timeout", None),
        "lookback_s": lookback_s,
    }


def _positive(given: Mapping[str, str], name: str, default: float | None) -> float | None:
    if not given.get(name):
        return default
    seconds = parse_duration(given[name], name)
    if seconds <= 0:
        raise BadRequest(400, f"{name}={given[name]} is not positive")
    return seconds


def _remote_read(method: str, path: str, body: bytes, now_s: float) -> Operation:
    selectors = decode_read_request(body)
    if len(selectors) > MAX_SELECTORS:
        raise BadRequest(422, f"the request has {len(selectors)} queries; at most {MAX_SELECTORS} are accepted")
    ends = [float(each.at) for each in selectors if isinstance(each.at, float)]
    starts = [float(each.at) - each.range_s for each in selectors if isinstance(each.at, float)]
    return Operation(
        kind="remote_read", method=method, path=path, now_s=now_s, body=body, selectors=selectors,
        start_s=min(starts, default=now_s), end_s=max(ends, default=now_s),
    )  # fmt: skip
