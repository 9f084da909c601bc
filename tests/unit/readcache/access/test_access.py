"""Issue 15 A3: decisions are young, shared and bounded, and errors are not decisions."""

from __future__ import annotations

import asyncio
import gc
import logging
import random

import pytest

from muster.readcache.access.access import Access, Admitted
from muster.readcache.access.settings import AccessSettings
from muster.readcache.request import Forward, Refusal
from tests.support.waiting import until
from tests.unit.readcache.access.reviewserver import ReviewServer, reading, request


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> ReviewServer:
    server = ReviewServer()
    server.users = {"token-of-x": "x", "token-of-y": "y"}
    server.allowed = {("x", "list", "a"), ("y", "list", "a")}
    return server


@pytest.fixture
def clock() -> Clock:
    return Clock()


def access(server: ReviewServer, clock: Clock, **settings: float) -> Access:
    return Access(server.client(), AccessSettings(**settings), clock=clock)  # type: ignore[arg-type]


async def outcome(access: Access, token: str = "token-of-x", namespace: str = "a", peer: str = "10.0.0.1") -> str:
    try:
        answer = await access.admit(reading(namespace), request(token, peer))
    except Refusal as refusal:
        return str(refusal.code)
    return "forward" if isinstance(answer, Forward) else answer.user.name


async def test_decision_is_kept_for_its_age_and_then_asked_again(server: ReviewServer, clock: Clock) -> None:
    checks = access(server, clock)
    assert [await outcome(checks) for _ in range(3)] == ["x", "x", "x"]
    assert server.asked == {"tokenreviews": 1, "subjectaccessreviews": 1}
    server.allowed.clear()
    clock.now += 9.99
    assert await outcome(checks) == "x"
    clock.now += 0.01
    assert await outcome(checks) == "403"
    assert server.asked == {"tokenreviews": 2, "subjectaccessreviews": 2}


async def test_token_that_became_invalid_is_refused_after_the_bound(server: ReviewServer, clock: Clock) -> None:
    checks = access(server, clock)
    assert await outcome(checks) == "x"
    server.users.clear()
    clock.now += 9.99
    assert await outcome(checks) == "x"
    clock.now += 0.01
    assert await outcome(checks) == "401"


async def test_age_counts_from_the_question_not_from_a_late_answer(server: ReviewServer, clock: Clock) -> None:
    checks = access(server, clock)
    server.held = asyncio.Event()
    asking = asyncio.create_task(outcome(checks))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    clock.now += 8
    server.held.set()
    assert await asking == "x"
    server.held = None
    server.users.clear()
    clock.now += 2
    assert await outcome(checks) == "401"


async def test_age_of_zero_asks_for_each_request_also_at_the_same_time(server: ReviewServer, clock: Clock) -> None:
    checks = access(server, clock, decision_max_age_s=0)
    assert await asyncio.gather(*(outcome(checks) for _ in range(3))) == ["x", "x", "x"]
    assert server.asked == {"tokenreviews": 3, "subjectaccessreviews": 3}


async def test_equal_questions_at_the_same_time_are_asked_once(server: ReviewServer, clock: Clock) -> None:
    checks = access(server, clock)
    callers = [outcome(checks, peer=f"10.0.0.{index}") for index in range(50)]
    assert set(await asyncio.gather(*callers)) == {"x"}
    assert server.asked == {"tokenreviews": 1, "subjectaccessreviews": 1}


async def test_caller_that_gives_up_does_not_cancel_the_question_of_others(server: ReviewServer, clock: Clock) -> None:
    checks = access(server, clock)
    server.held = asyncio.Event()
    first, second = asyncio.create_task(outcome(checks)), asyncio.create_task(outcome(checks))
    await until("the question is asked", lambda: server.asked["tokenreviews"])
    first.cancel()
    await asyncio.wait([first])
    server.held.set()
    assert await second == "x"
    assert server.asked["tokenreviews"] == 1


async def test_error_that_no_caller_waits_for_is_not_reported(server: ReviewServer, clock: Clock) -> None:
    checks = access(server, clock)
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    server.held = asyncio.Event()
    caller = asyncio.create_task(outcome(checks))
    await until("the question is asked", lambda: server.asked["tokenreviews"])
    caller.cancel()
    await asyncio.wait([caller])
    server.status = 500
    server.held.set()
    await until("the question has failed", lambda: checks.counters.reviews[("token", "failed")])
    await until("its task has ended", lambda: len(asyncio.all_tasks()) == 1)
    del caller
    gc.collect()
    assert (reported, server.asked["tokenreviews"]) == ([], 1)


@pytest.mark.parametrize(("status", "code"), [(500, "503"), (503, "503"), (403, "503"), (401, "503"), (429, "429")])
async def test_error_is_not_kept_as_a_denial(server: ReviewServer, clock: Clock, status: int, code: str) -> None:
    checks = access(server, clock)
    server.status = status
    assert await outcome(checks) == code
    server.status = None
    assert await outcome(checks) == "x"


async def test_without_upstream_only_callers_within_the_bound_are_admitted(server: ReviewServer, clock: Clock) -> None:
    checks = access(server, clock)
    assert await outcome(checks) == "x"
    server.away = True
    assert await outcome(checks, "token-of-y") == "503"
    assert await outcome(checks, namespace="b") == "503"
    clock.now += 9.99
    assert await outcome(checks) == "x"
    clock.now += 0.01
    assert await outcome(checks) == "503"


async def test_refusal_without_upstream_asks_to_retry(server: ReviewServer, clock: Clock) -> None:
    server.away = True
    with pytest.raises(Refusal) as refusal:
        await access(server, clock).admit(reading(), request("token-of-x"))
    assert (refusal.value.reason, refusal.value.retry_after_s) == ("ServiceUnavailable", 1)


async def test_review_without_an_answer_ends_at_its_deadline(server: ReviewServer, clock: Clock) -> None:
    server.held = asyncio.Event()
    assert await outcome(access(server, clock, review_timeout_s=0.01)) == "503"


async def test_failed_authorizer_is_left_to_the_api_server_and_asked_again(server: ReviewServer, clock: Clock) -> None:
    checks = access(server, clock)
    server.evaluation_error = "webhook: no route to host"
    assert await outcome(checks, namespace="b") == "forward"
    server.evaluation_error = ""
    assert await outcome(checks, namespace="b") == "403"


async def test_authorizer_that_fails_but_allows_is_believed(server: ReviewServer, clock: Clock) -> None:
    server.evaluation_error = "webhook: no route to host"
    assert await outcome(access(server, clock)) == "x"


@pytest.mark.parametrize("name", ["", "system:anonymous"])
async def test_token_of_no_user_is_refused(server: ReviewServer, clock: Clock, name: str) -> None:
    server.users["token-of-x"] = name
    server.allowed.add((name, "list", "a"))
    assert await outcome(access(server, clock)) == "401"


@pytest.mark.parametrize(("answered", "code"), [((), "401"), (("other",), "401"), (("other", "cache"), "x")])
async def test_token_needs_one_of_the_audiences(
    server: ReviewServer, clock: Clock, answered: tuple[str, ...], code: str
) -> None:
    server.audiences = answered
    checks = Access(server.client(), AccessSettings(audiences=("cache", "cache-2")), clock=clock)
    assert await outcome(checks) == code
    assert server.bodies[0]["spec"]["audiences"] == ["cache", "cache-2"]


async def test_review_has_the_whole_user_and_the_selectors(server: ReviewServer, clock: Clock) -> None:
    checks = access(server, clock)
    query = {"fieldSelector": "metadata.name=n,spec.nodeName!=m", "labelSelector": "a in (b)"}
    assert isinstance(await checks.admit(reading(), request("token-of-x", **query)), Admitted)
    assert server.bodies[1]["spec"] == {
        "user": "x",
        "uid": "uid-x",
        "groups": ["system:authenticated"],
        "resourceAttributes": {
            "namespace": "a",
            "verb": "list",
            "version": "v1",
            "resource": "pods",
            "name": "n",
            "fieldSelector": {"rawSelector": query["fieldSelector"]},
            "labelSelector": {"rawSelector": query["labelSelector"]},
        },
    }


async def test_kept_answers_are_bounded(server: ReviewServer, clock: Clock) -> None:
    """Many selectors of one caller, and many tokens of many callers: the oldest answers are dropped."""
    checks = access(server, clock, entries_max=8)
    for index in range(20):
        await checks.admit(reading(), request("token-of-x", labelSelector=f"a={index}"))
    assert server.asked["subjectaccessreviews"] == 20
    for index in (19, 12, 0):
        await checks.admit(reading(), request("token-of-x", labelSelector=f"a={index}"))
    assert server.asked["subjectaccessreviews"] == 21
    server.users |= {f"token-{index}": f"user-{index}" for index in range(20)}
    for index in range(20):
        assert await outcome(checks, f"token-{index}") == "403"
    asked = server.asked["tokenreviews"]
    assert [await outcome(checks, f"token-{index}") for index in (19, 12)] == ["403", "403"]
    assert server.asked["tokenreviews"] == asked
    assert await outcome(checks, "token-0") == "403"
    assert server.asked["tokenreviews"] == asked + 1


@pytest.mark.slow
async def test_tokens_appear_nowhere(
    server: ReviewServer, clock: Clock, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """In no log, error or representation, and in nothing that is still alive."""
    caplog.set_level(logging.DEBUG)
    checks = access(server, clock)
    number = random.Random(1).getrandbits(128)
    server.users[f"s3cret-{number}"] = "x"
    texts = []
    for status in (None, 400, 401, 403, 429, 500):
        server.status = status
        for known in (True, False):
            token = f"s3cret-{number}" if known else f"s3cret-{number}-{status}"
            try:
                texts.append(repr(await checks.admit(reading("b"), request(token))))
            except Refusal as refusal:
                texts += [repr(refusal), str(refusal.__cause__), refusal.message, str(refusal.details)]
    server.bodies.clear()
    gc.collect()
    texts += [caplog.text, *capsys.readouterr(), repr(vars(checks))]
    assert "s3cret" not in "".join(texts)
    seen: set[int] = set()
    waiting: list[object] = [checks]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or each is server or isinstance(each, type):
            continue
        seen.add(id(each))
        assert not (isinstance(each, str) and "s3cret" in each)
        assert not (isinstance(each, bytes) and b"s3cret" in each)
        if type(each).__module__.startswith(("muster.readcache", "collections", "builtins")):
            waiting += gc.get_referents(each)
            for name in getattr(type(each), "__slots__", ()):
                waiting.append(getattr(each, name, None))
    assert len(seen) > 30


async def test_questions_are_counted_by_outcome(server: ReviewServer, clock: Clock) -> None:
    checks = access(server, clock)
    for namespace in ("a", "a", "b"):
        await outcome(checks, namespace=namespace)
    await outcome(checks, "bad")
    server.status = 500
    await outcome(checks, "token-of-y")
    assert checks.counters.reviews == {
        ("token", "allowed"): 1,
        ("token", "denied"): 1,
        ("token", "failed"): 1,
        ("access", "allowed"): 1,
        ("access", "denied"): 1,
    }
    assert checks.counters.kept == {"token": 2, "access": 1}


async def test_openyurt_authorizes_everyone_but_here_a_right_of_one_caller_admits_no_other(
    server: ReviewServer, clock: Clock
) -> None:
    """The multiplexer of openyurtio/openyurt serves its shared cache to each caller on the node."""
    server.allowed = {("x", "list", "a")}
    checks = access(server, clock)
    assert [await outcome(checks, token) for token in ("token-of-x", "token-of-y", "made-up", "token-of-x")] == [
        "x",
        "403",
        "401",
        "x",
    ]
    assert await outcome(checks, namespace="b") == "403"
