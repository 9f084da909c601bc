"""Tests that cannot be made, or cannot start: tried again later each time, and at once with another configuration."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from muster.fleet.preflight.plan import Start
from muster.fleet.preflight.refusals import REFUSED_MAX_S, REFUSED_S, after_starts, refusal_of
from muster.fleet.preflight.snapshot import Refusal
from muster.fleet.preflight.testpod import made_with
from muster.kube.errors import error_from
from tests.unit.preflight.test_controller import CONFIG_KEY, CONFIG_MAP, NAMESPACE, PODS, TEXT, World
from tests.unit.preflight.world import CONFIG
from tests.unit.preflight.world import World as Pure

PRIORITY = "/apis/scheduling.k8s.io/v1/priorityclasses"
MAP = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{CONFIG_MAP}"


def refusals(world: World) -> tuple[int, str]:
    """How often tests were refused, as Events say, and what the last one says."""
    events = world.call("GET", "/api/v1/namespaces/default/events")["items"]
    said = [each for each in events if each["reason"] == "PreflightRefused"]
    return sum(each["count"] for each in said), said[-1]["message"] if said else ""


@pytest.mark.slow
def test_without_their_priority_class_tests_are_tried_ever_more_seldom_and_begin_once_it_is_there() -> None:
    world = World()
    world.call("DELETE", f"{PRIORITY}/muster-preflight")

    async def story() -> None:
        for number in range(20):
            world.add_node(f"n{number}")
        await asyncio.sleep(3600)
        count, said = refusals(world)
        assert 20 <= count <= 45, "all at first, then one at a time, later each time"
        assert "no PriorityClass with name muster-preflight was found" in said
        assert "helm upgrade" in said
        assert world.tested == []
        world.call("POST", PRIORITY, {"metadata": {"name": "muster-preflight"}, "value": -2})
        await asyncio.sleep(REFUSED_MAX_S + 60)
        assert len(set(world.tested)) == 20
        assert world.pending() == set()

    world.run(story)


@pytest.mark.slow
def test_a_new_configuration_is_tried_at_once_after_refusals() -> None:
    world = World()
    world.call("DELETE", f"{PRIORITY}/muster-preflight")

    async def story() -> None:
        world.add_node("a")
        await asyncio.sleep(1500)
        world.call("POST", PRIORITY, {"metadata": {"name": "muster-preflight"}, "value": -2})
        world.call("PATCH", MAP, {"data": {CONFIG_KEY: TEXT + "pullPolicy: Always\n"}})
        await asyncio.sleep(30)
        assert world.tested == ["a"]

    world.run(story)


def test_test_that_waits_for_its_image_is_recreated_at_once_with_another_configuration() -> None:
    world = World()
    world.unpullable.add("typo")
    world.call("PATCH", MAP, {"data": {CONFIG_KEY: TEXT.replace("none", "typo")}})

    async def story() -> None:
        world.add_node("a")
        await asyncio.sleep(600)
        (test,) = world.call("GET", PODS)["items"]
        assert test["spec"]["containers"][0]["image"] == "typo"
        world.call("PATCH", MAP, {"data": {CONFIG_KEY: TEXT}})
        await asyncio.sleep(40)
        assert world.tested == ["a"]
        assert world.pending() == set()

    world.run(story)


def test_a_running_test_is_not_stopped_by_another_configuration() -> None:
    world = Pure()
    world.add("a")
    world.step()
    world.run_test("a")
    world.config = replace(CONFIG, image="another")
    world.step()
    assert world.said == []
    assert list(world.tests)


def test_no_more_than_one_test_is_tried_after_a_refusal_and_none_before_its_time() -> None:
    world = Pure()
    world.add("a", "b", "c")
    world.refused = Refusal("quota", 1, world.now + 10, made_with(CONFIG))
    plan = world.decide()
    assert not [each for each in plan.actions if isinstance(each, Start)]
    assert plan.wake_at == world.now + 10
    world.now += 10
    assert len([each for each in world.decide().actions if isinstance(each, Start)]) == 1
    world.refused = replace(world.refused, made_with="another configuration")
    assert len([each for each in world.decide().actions if isinstance(each, Start)]) == 3


def test_a_node_whose_own_test_is_refused_keeps_no_other_from_being_tested() -> None:
    world = Pure()
    world.add("a", "b")
    starts = [each for each in world.decide().actions if isinstance(each, Start)]
    first, second = starts
    world.refused, world.attempts = after_starts(
        [(first, "refused"), (second, "")], None, {}, world.now, made_with(CONFIG)
    )
    assert world.refused is not None
    world.now = world.refused.not_before
    world.attempts[first.node] = replace(world.attempts[first.node], not_before=world.now + 60)
    assert [each.node for each in world.decide().actions if isinstance(each, Start)] == [second.node]


def test_backoff_grows_to_a_limit_and_resets_after_a_success() -> None:
    (start,) = (each for each in _one().decide().actions if isinstance(each, Start))
    refused, attempts, pauses = None, {}, []
    for _ in range(8):
        refused, attempts = after_starts([(start, "no")], refused, attempts, 0.0, "x")
        assert refused is not None
        assert attempts[start.node].not_before == refused.not_before
        pauses.append(refused.not_before)
    assert pauses == [REFUSED_S, 20, 40, 80, 160, REFUSED_MAX_S, REFUSED_MAX_S, REFUSED_MAX_S]
    assert after_starts([], refused, attempts, 0.0, "x") == (refused, attempts)
    assert after_starts([(start, "")], refused, attempts, 0.0, "x")[0] is None


def _one() -> Pure:
    world = Pure()
    world.add("a")
    return world


@pytest.mark.parametrize(
    ("status", "reason", "message", "refused"),
    [
        (403, "Forbidden", 'pods "x" is forbidden: exceeded quota: q, requested: pods=1', True),
        (422, "Invalid", "spec.containers[0].image: Required value", True),
        (500, "InternalError", 'failed calling webhook "w": connection refused', True),
        (409, "AlreadyExists", "there", False),
        (404, "NotFound", 'namespaces "x" not found', False),
        (429, "TooManyRequests", "later", False),
        (503, "", "away", False),
        (504, "Timeout", "away", False),
    ],
)
def test_transient_refusals_are_not_counted(status: int, reason: str, message: str, refused: bool) -> None:
    body: dict[str, Any] = {"status": "Failure", "reason": reason, "message": message, "code": status}
    import json

    assert bool(refusal_of(error_from(status, json.dumps(body).encode()))) is refused
