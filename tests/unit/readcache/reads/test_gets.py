"""GET of one object."""

from __future__ import annotations

import json

from muster.readcache.request import Answer, Forward
from tests.unit.readcache.reads.loaded import Cache, body, pod

GET = "/api/v1/namespaces/a/pods/"


async def test_get_with_a_version_is_served_and_without_one_forwarded() -> None:
    cache = Cache(pod("x", 5))
    answer = await cache.ask(f"{GET}x?resourceVersion=0")
    assert isinstance(answer, Answer)
    found = json.loads(body(answer))
    assert (found["kind"], found["apiVersion"], found["metadata"]["name"]) == ("Pod", "v1", "x")
    assert isinstance(await cache.ask(f"{GET}x"), Forward)
    assert isinstance(await cache.ask(f"{GET}x?resourceVersion="), Forward)


async def test_object_that_does_not_exist() -> None:
    answer = await Cache(pod("x", 5)).ask(f"{GET}y?resourceVersion=0")
    assert isinstance(answer, Answer)
    assert (answer.status, answer.content_type) == (404, "application/json")
    assert json.loads(body(answer)) == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'pods "y" not found',
        "reason": "NotFound",
        "details": {"name": "y", "kind": "pods"},
        "code": 404,
    }


async def test_version_that_is_not_a_number_is_an_error_without_a_reason() -> None:
    answer = await Cache(pod("x", 5)).ask(f"{GET}x?resourceVersion=abc")
    assert isinstance(answer, Answer)
    assert answer.status == 500
    assert "reason" not in json.loads(body(answer))
