"""Issue 17 A3: tokens of the cluster, which the API server reviews."""

from __future__ import annotations

import asyncio
from base64 import b64encode

import pytest
from multidict import CIMultiDict

from muster.kube.errors import BadConfig
from muster.kube.reviewgate import GateLimits
from muster.telemetry.guard.callers.caller import NotIdentified, Peer
from muster.telemetry.guard.callers.callers import Callers
from muster.telemetry.guard.config import parse_config
from tests.unit.readcache.access.reviewserver import ReviewServer

TEXT = """
upstream: {url: http://prometheus:9090}
callers:
  cluster:
    audience: muster-guard
    callers:
    - {name: rules, users: ["system:serviceaccount:monitoring:ruler"]}
    - {name: everyone, groups: ["system:authenticated"], tenant: shared}
"""
ONLY_RULER = TEXT.replace('"system:authenticated"', '"admins"')
PEER = Peer("10.0.0.1")


def reviews() -> ReviewServer:
    server = ReviewServer()
    server.users = {"of-ruler": "system:serviceaccount:monitoring:ruler", "of-alice": "alice"}
    server.audiences = ("muster-guard",)
    return server


def bearer(token: str) -> CIMultiDict[str]:
    return CIMultiDict({"Authorization": f"Bearer {token}"})


async def status(callers: Callers, token: str, peer: Peer = PEER) -> tuple[int, str]:
    with pytest.raises(NotIdentified) as caught:
        await callers.identify(peer, bearer(token))
    assert token not in str(caught.value)
    return caught.value.status, caught.value.reason


async def test_token_that_is_not_utf_8_is_refused_without_a_review() -> None:
    server = reviews()
    assert await status(Callers(parse_config(TEXT), server.client()), "of-\udcff") == (401, "bad_credentials")
    assert server.asked["tokenreviews"] == 0


async def test_user_of_the_cluster_is_a_caller() -> None:
    server = reviews()
    callers = Callers(parse_config(TEXT), server.client())
    assert (await callers.identify(PEER, bearer("of-ruler"))).name == "rules"
    alice = await callers.identify(PEER, bearer("of-alice"))
    assert (alice.name, alice.tenant, alice.label) == ("everyone", "shared", "everyone")
    assert server.bodies[0]["spec"]["audiences"] == ["muster-guard"]
    assert await status(callers, "invalid") == (401, "bad_credentials")


async def test_basic_authentication_needs_the_name_of_the_caller() -> None:
    def basic(user: str) -> CIMultiDict[str]:
        return CIMultiDict({"Authorization": "Basic " + b64encode(f"{user}:of-ruler".encode()).decode()})

    callers = Callers(parse_config(TEXT), reviews().client())
    assert (await callers.identify(PEER, basic("rules"))).name == "rules"
    with pytest.raises(NotIdentified):
        await callers.identify(PEER, basic("everyone"))


async def test_token_is_reviewed_once() -> None:
    server = reviews()
    callers = Callers(parse_config(TEXT), server.client())
    await asyncio.gather(*(callers.identify(PEER, bearer("of-ruler")) for _ in range(20)))
    await callers.identify(PEER, bearer("of-ruler"))
    assert server.asked["tokenreviews"] == 1


async def test_token_that_was_revoked_is_accepted_for_a_minute_at_most() -> None:
    server, now, wall = reviews(), [1000.0], [1e9]
    callers = Callers(parse_config(TEXT), server.client(), wall_clock=lambda: wall[0], steady_clock=lambda: now[0])
    await callers.identify(PEER, bearer("of-ruler"))
    server.users.clear()
    wall[0] -= 86400.0  # an operator sets the time of day
    now[0] += 59
    await callers.identify(PEER, bearer("of-ruler"))
    now[0] += 1
    assert await status(callers, "of-ruler") == (401, "bad_credentials")


async def test_new_configuration_applies_to_tokens_that_were_reviewed() -> None:
    server = reviews()
    callers = Callers(parse_config(TEXT), server.client())
    await callers.identify(PEER, bearer("of-alice"))
    callers.replace(parse_config(ONLY_RULER))
    assert await status(callers, "of-alice") == (403, "unknown_user")
    callers.replace(parse_config("upstream: {url: http://prometheus:9090}"))
    assert await status(callers, "of-ruler") == (401, "bad_credentials")


async def test_token_for_another_audience_is_refused() -> None:
    server = reviews()
    server.audiences = ("vault",)
    assert await status(Callers(parse_config(TEXT), server.client()), "of-ruler") == (401, "bad_credentials")


async def test_api_server_that_fails_lets_no_token_pass() -> None:
    server = reviews()
    callers = Callers(parse_config(TEXT), server.client())
    server.away = True
    assert await status(callers, "of-ruler") == (503, "no_review")
    server.away, server.status = False, 403
    assert await status(callers, "of-ruler") == (503, "no_review")
    server.status = None
    assert (await callers.identify(PEER, bearer("of-ruler"))).name == "rules"


async def test_invalid_tokens_are_limited_and_known_callers_do_not_notice() -> None:
    server = reviews()
    tight = GateLimits(
        peer_rejections_per_s=0.001,
        peer_rejections_burst=5,
        rejections_per_s=0.001,
        rejections_burst=8,
        admission_wait_s=0.01,
    )
    callers = Callers(parse_config(TEXT), server.client(), gate=tight)
    await callers.identify(PEER, bearer("of-ruler"))
    found = [await status(callers, f"guess-{n}") for n in range(7)]
    assert found == [(401, "bad_credentials")] * 5 + [(429, "too_many_bad_tokens")] * 2
    assert server.asked["tokenreviews"] == 6
    assert (await callers.identify(PEER, bearer("of-ruler"))).name == "rules"
    assert (await callers.identify(Peer("10.0.0.2"), bearer("of-alice"))).name == "everyone"


async def test_tokens_of_the_cluster_need_an_api_server() -> None:
    with pytest.raises(BadConfig, match="needs an API server"):
        Callers(parse_config(TEXT))
