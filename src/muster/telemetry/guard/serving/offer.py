"""Offers a cheaper form of a refused request only if that form would be allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import parse_qsl

import msgspec

from muster.telemetry.guard.decide import Allow, Refuse
from muster.telemetry.guard.query.errors import BadRequest, NotListed
from muster.telemetry.guard.query.operation import Operation
from muster.telemetry.guard.query.parsing import parse

CANDIDATES_MAX: Final = 4
DEADLINE_S: Final = 2.0
"""Forms of other ranges may need probes. A refusal does not wait longer for them."""
WITHOUT_FORM: Final = "ask for fewer series, a shorter range or a longer step, or use a recording rule"

Decided = Callable[[Operation], Awaitable[Allow | Refuse]]


async def with_allowed_form(refuse: Refuse, now_s: float, decided: Decided) -> Refuse:
    """Return the refusal with a cheaper form that is allowed. If there is none, it has advice only.

    A candidate that is refused has a candidate of its own, which takes its place.

    Args:
        refuse: the refusal, with its candidate.
        now_s: Unix time of the request.
        decided: prices an operation and decides about it.
    """
    if not refuse.cheaper:
        return refuse
    try:
        async with asyncio.timeout(DEADLINE_S):
            found = await _allowed(refuse, now_s, decided)
    except TimeoutError:
        found = None
    if found is not None:
        return found
    return msgspec.structs.replace(refuse, advice=WITHOUT_FORM, cheaper="")


async def _allowed(refuse: Refuse, now_s: float, decided: Decided) -> Refuse | None:
    form, advice = refuse.cheaper, [refuse.advice]
    for _ in range(CANDIDATES_MAX):
        path, _, query = form.partition("?")
        try:
            verdict = await decided(parse("GET", path, parse_qsl(query, keep_blank_values=True), "", b"", now_s))
        except (BadRequest, NotListed):
            return None
        if isinstance(verdict, Allow):
            return msgspec.structs.replace(refuse, advice="; ".join(dict.fromkeys(advice)), cheaper=form)
        if not verdict.cheaper or verdict.cheaper == form:
            return None
        form = verdict.cheaper
        advice.append(verdict.advice)
    return None
