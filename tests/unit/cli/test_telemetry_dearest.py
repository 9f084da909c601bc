"""`muster telemetry dearest` before a server that sends what no guard sends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from tests.support.fakeprometheus import serving
from tests.support.telemetrycommand import telemetry

EVIL = "\x1b[31mred\x07\u202e\r\nnext"
LAST = {"time": 1.0, "cost": 1.0, "outcome": "sent", "rangeSeconds": 0, "stepSeconds": 0, "series": 1, "samples": 1}
QUERY = {
    **dict.fromkeys(
        ("caller", "group", "kind", "query", "dashboardUid", "dashboardTitle", "panelId", "panelTitle", "ruleUid",
         "orgId"), EVIL),
    "recentCost": 1e308, "requests": 1, "notSent": 0, "maxCost": 1.0, "meanSeconds": 1.0, "maxSeconds": 1e308,
    "maxAnswerBytes": (1 << 63) - 1,
}  # fmt: skip


async def shown(text: str) -> tuple[int, str]:
    """Return the exit status and the output of the command for this page."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(text=text, content_type="application/json")

    async with serving(handler) as url:
        done = await asyncio.to_thread(telemetry, "dearest", f"--prometheus={url}")
    return done.returncode, done.stdout + done.stderr


def page(**changes: Any) -> str:
    query = {**QUERY, "last": {**LAST, **changes.pop("last", {})}, **changes}
    return json.dumps({"status": "success", "data": {"of": "all", "halfLifeSeconds": 1.0, "queries": [query]}})


@pytest.mark.parametrize("at_s", [1.0, 1e300, -1e300])
async def test_control_characters_and_huge_numbers_are_shown_harmlessly(at_s: float) -> None:
    status, text = await shown(page(last={"time": at_s}))
    assert status == 0, text
    assert "red" in text
    assert not {"\x1b", "\x07", "\u202e", "\r"} & set(text)
    assert len(text.splitlines()) == 2


@pytest.mark.parametrize("text", ["[" * 100_000, page(maxAnswerBytes=10**400), '{"data": "\udcff"}', "null"])
async def test_page_that_is_not_that_of_a_guard_is_named(text: str) -> None:
    status, found = await shown(text.encode("utf-8", "replace").decode())
    assert (status, "is not a guard" in found) == (4, True), found
