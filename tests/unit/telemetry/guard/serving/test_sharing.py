"""Equal requests in flight are sent once; unequal ones never share."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from muster.telemetry.guard.callers.caller import Caller
from muster.telemetry.guard.serving.settings import ServingSettings
from muster.telemetry.guard.serving.upstream import UpstreamRequest
from tests.support.rawserver import Arrived, Upstream
from tests.support.waiting import until
from tests.unit.telemetry.guard.serving.guarded import ANSWER, QUERY, Guarded, answer, guarded
from tests.unit.telemetry.guard.serving.test_answers import CHUNKED, PIECE, chunk, slow_client

HASHES = {token: hashlib.sha256(token.encode()).hexdigest() for token in ("aaa", "bbb")}
TENANTS = f"""callers:
  tokens:
  - {{name: one, sha256: {HASHES["aaa"]}, tenant: red}}
  - {{name: two, sha256: {HASHES["bbb"]}, tenant: blue}}
"""


class Held:
    """A script that answers once it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, upstream: Upstream, arrived: Arrived) -> None:
        await self.go.wait()
        await answer(upstream, arrived)


async def asked_twice(guard: Guarded, first: str, second: str) -> list[asyncio.Task[bytes]]:
    """Send two requests, given by target and headers, and wait until both are at the guard or at Prometheus."""

    async def one(request: str) -> bytes:
        target, *headers = request.split("\n")
        return (await guard.get(target, *headers)).body

    tasks = [asyncio.create_task(one(first))]
    await until("the first is sent", lambda: len(guard.upstream.heads) == 1)
    tasks.append(asyncio.create_task(one(second)))
    await until("the second is here", lambda: len(guard.assess.seen) == 2)
    return tasks


async def test_equal_requests_in_flight_are_sent_once() -> None:
    held = Held()
    async with guarded(held) as guard:
        tasks = await asked_twice(guard, QUERY, QUERY)
        held.go.set()
        assert await asyncio.gather(*tasks) == [ANSWER, ANSWER]
        assert len(guard.upstream.heads) == 1
        assert sorted(record.shared for record in guard.records) == [False, True]


async def test_answer_is_not_kept_after_its_request() -> None:
    async with guarded(answer) as guard:
        assert (await guard.get()).body == (await guard.get()).body == ANSWER
        assert len(guard.upstream.heads) == 2


@pytest.mark.parametrize(
    "other",
    [
        "/api/v1/query?query=down",
        "/api/v1/query_range?query=up",
        "/api/v1/query?query=up&time=1",
        f"{QUERY}\nAccept-Encoding: gzip",
        f"{QUERY}\nAccept: application/openmetrics-text",
    ],
)
async def test_unequal_requests_are_sent_each(other: str) -> None:
    held = Held()
    async with guarded(held) as guard:
        tasks = await asked_twice(guard, QUERY, other)
        await until("both are sent", lambda: len(guard.upstream.heads) == 2)
        held.go.set()
        await asyncio.gather(*tasks)


async def test_tenant_never_gets_the_answer_of_another() -> None:
    async def script(upstream: Upstream, arrived: Arrived) -> None:
        await until("both are sent", lambda: len(upstream.heads) == 2)
        body = arrived.headers["x-scope-orgid"].encode()
        await arrived.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    async with guarded(script, config=TENANTS) as guard:
        tasks = await asked_twice(
            guard, f"{QUERY}\nAuthorization: Bearer aaa", f"{QUERY}\nAuthorization: Bearer bbb\nX-Tenant: red"
        )
        assert await asyncio.gather(*tasks) == [b"red", b"blue"]


async def test_other_limits_or_a_request_that_must_not_be_shared_are_sent_each() -> None:
    held = Held()
    async with guarded(held) as guard:
        guard.assess.shared = False
        tasks = await asked_twice(guard, QUERY, QUERY)
        await until("both are sent", lambda: len(guard.upstream.heads) == 2)
        held.go.set()
        await asyncio.gather(*tasks)


async def test_follower_gets_the_answer_although_the_leader_disconnects() -> None:
    held = Held()
    async with guarded(held) as guard:
        leader = await guard.connect()
        await leader.send(f"GET {QUERY} HTTP/1.1\r\nHost: g\r\n\r\n")
        await until("it is sent", lambda: len(guard.upstream.heads) == 1)
        follower = asyncio.create_task(guard.get())
        await until("the second is here", lambda: len(guard.assess.seen) == 2)
        await leader.close()
        await until("the leader is gone", lambda: guard.outcomes() == ["client_gone"])
        held.go.set()
        assert (await follower).body == ANSWER
        assert len(guard.upstream.heads) == 1


async def test_failure_goes_to_all_and_the_next_request_is_sent_again() -> None:
    failing = asyncio.Event()

    async def script(upstream: Upstream, arrived: Arrived) -> None:
        if len(upstream.heads) > 1:
            await answer(upstream, arrived)
            return
        await failing.wait()
        raise ConnectionError

    async with guarded(script) as guard:
        tasks = [asyncio.create_task(guard.get()) for _ in range(3)]
        await until("all are here", lambda: len(guard.assess.seen) == 3)
        failing.set()
        assert [reply.status for reply in await asyncio.gather(*tasks)] == [502, 502, 502]
        assert len(guard.upstream.heads) == 1
        assert (await guard.get()).body == ANSWER


async def test_request_joins_while_no_byte_was_dropped_and_not_later() -> None:
    proceed = asyncio.Event()

    async def script(upstream: Upstream, arrived: Arrived) -> None:
        await arrived.send(CHUNKED + chunk(PIECE))
        await proceed.wait()
        await arrived.send(chunk(PIECE) + b"0\r\n\r\n")

    async with guarded(script, settings=ServingSettings(hold_bytes=1 << 19)) as guard:
        tasks = [asyncio.create_task(guard.get())]
        await until("it is sent", lambda: len(guard.upstream.heads) == 1)
        tasks.append(asyncio.create_task(guard.get()))
        await until("the second is here", lambda: len(guard.assess.seen) == 2)
        proceed.set()
        assert [reply.body for reply in await asyncio.gather(*tasks)] == [PIECE * 2] * 2
        assert len(guard.upstream.heads) == 1
    proceed.clear()
    async with guarded(script, settings=ServingSettings(hold_bytes=1)) as guard:
        first = await guard.connect()
        await first.send(f"GET {QUERY} HTTP/1.1\r\nHost: g\r\n\r\n")
        await first.head()
        await first.chunk()
        late = asyncio.create_task(guard.get())
        await until("it is sent as well", lambda: len(guard.upstream.heads) == 2)
        proceed.set()
        assert (await late).body == PIECE * 2


async def test_slow_follower_is_cut_and_the_others_go_on() -> None:
    pieces = 200
    go = asyncio.Event()

    async def script(_: Upstream, arrived: Arrived) -> None:
        await go.wait()
        await arrived.send(CHUNKED)
        for _piece in range(pieces):
            await arrived.send(chunk(PIECE))
        await arrived.send(b"0\r\n\r\n")

    # The kernel holds fewer bytes for the slow one than the window: it is never ahead, and alone holds up others.
    settings = ServingSettings(window_bytes=4 << 20, lag_s=0.1)
    async with guarded(script, settings=settings) as guard:
        slow = await slow_client(guard)
        await slow.send(f"GET {QUERY} HTTP/1.1\r\nHost: g\r\n\r\n")
        await until("it is sent", lambda: len(guard.upstream.heads) == 1)
        fast = asyncio.create_task(guard.get())
        await until("the second is here", lambda: len(guard.assess.seen) == 2)
        go.set()
        assert len((await fast).body) == pieces * len(PIECE)
        await until("the slow one is cut", lambda: sorted(guard.outcomes()) == ["answered", "slow_client"])


class Turn:
    """A grant that counts its release."""

    waited_s = 0.0
    over = None

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def release(self, real_cost: float | None = None) -> None:
        self._gate.released += 1


class Gate:
    """Budgets that grant a request when they are let."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.grants: list[asyncio.Future[Turn]] = []
        self.released = 0

    def take_now(self, caller: Caller, cost: float, *, dry_run: bool = False) -> None:
        """Each request waits."""

    async def take(self, caller: Caller, cost: float, *, dry_run: bool = False) -> Turn:
        self.asked.append(caller.name)
        self.grants.append(asyncio.get_running_loop().create_future())
        return await self.grants[-1]

    def let(self, number: int) -> None:
        """Grant a request."""
        self.grants[number].set_result(Turn(self))


def gated(guard: Guarded) -> Gate:
    """Put a gate in place of the budgets."""
    gate = Gate()
    guard.handler._dispatcher._budgets = gate  # type: ignore[assignment]
    return gate


async def test_equal_requests_wait_for_the_budget_once() -> None:
    async with guarded(answer) as guard:
        gate = gated(guard)
        tasks = [asyncio.create_task(guard.get()) for _ in range(5)]
        await until("all wait", lambda: len(guard.assess.seen) == 5 and len(gate.asked) == 1)
        gate.let(0)
        assert [reply.body for reply in await asyncio.gather(*tasks)] == [ANSWER] * 5
        assert (len(gate.asked), len(guard.upstream.heads), gate.released) == (1, 1, 1)


async def test_next_of_equal_requests_waits_if_the_first_gives_up() -> None:
    async with guarded(answer) as guard:
        gate = gated(guard)
        leader = await guard.connect()
        await leader.send(f"GET {QUERY} HTTP/1.1\r\nHost: g\r\n\r\n")
        await until("it waits", lambda: len(gate.asked) == 1)
        follower = asyncio.create_task(guard.get())
        await until("the second is here", lambda: len(guard.assess.seen) == 2)
        await leader.close()
        await until("the second waits", lambda: len(gate.asked) == 2)
        assert gate.grants[0].cancelled()
        gate.let(1)
        assert (await follower).body == ANSWER
        assert gate.released == 1


async def test_request_of_another_caller_joins_instead_of_waiting() -> None:
    config = TENANTS.replace("blue", "red")
    held = Held()
    async with guarded(held, config=config) as guard:
        gate = gated(guard)
        tasks = [asyncio.create_task(guard.get(QUERY, f"Authorization: Bearer {token}")) for token in ("aaa", "bbb")]
        await until("both wait", lambda: sorted(gate.asked) == ["one", "two"])
        gate.let(1)
        await until("the wait of the other has ended", lambda: gate.grants[0].cancelled())
        held.go.set()
        assert [reply.body for reply in await asyncio.gather(*tasks)] == [ANSWER] * 2
        assert (len(guard.upstream.heads), gate.released) == (1, 1)


class SlowGate(Gate):
    """Budgets that grant a request although its wait was cancelled, a while later."""

    def __init__(self) -> None:
        super().__init__()
        self.ending = asyncio.Event()
        self.go = asyncio.Event()

    async def take(self, caller: Caller, cost: float, *, dry_run: bool = False) -> Turn:
        try:
            return await super().take(caller, cost, dry_run=dry_run)
        except asyncio.CancelledError:
            self.ending.set()
            await self.go.wait()
            return Turn(self)


async def test_request_ends_with_its_client_also_while_its_wait_for_the_budget_ends() -> None:
    config = TENANTS.replace("blue", "red")
    held = Held()
    async with guarded(held, config=config) as guard:
        gate = SlowGate()
        guard.handler._dispatcher._budgets = gate  # type: ignore[assignment]
        leaving = await guard.connect()
        await leaving.send(f"GET {QUERY} HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer aaa\r\n\r\n")
        await until("the first waits", lambda: gate.asked == ["one"])
        other = asyncio.create_task(guard.get(QUERY, "Authorization: Bearer bbb"))
        await until("both wait", lambda: gate.asked == ["one", "two"])
        gate.let(1)
        await gate.ending.wait()
        await leaving.close()
        await until("it has ended", lambda: guard.outcomes() == ["client_gone"])
        gate.go.set()
        await until("its grant is given back", lambda: gate.released == 1)
        held.go.set()
        assert (await other).body == ANSWER


@pytest.mark.parametrize("after_s", [0.0, 600.0])
async def test_budget_is_released_a_while_after_the_client_goes(after_s: float) -> None:
    async with guarded(Held(), settings=ServingSettings(after_cancel_s=after_s, stop_s=1.0)) as guard:
        gate = gated(guard)
        client = await guard.connect()
        await client.send(f"GET {QUERY} HTTP/1.1\r\nHost: g\r\n\r\n")
        await until("it waits", lambda: len(gate.asked) == 1)
        gate.let(0)
        await until("it is sent", lambda: len(guard.upstream.heads) == 1)
        assert gate.released == 0
        await client.close()
        await until("the request has ended", lambda: len(guard.handler.flights) == 0)
        if after_s:
            assert gate.released == 0
        else:
            await until("the budget is free", lambda: gate.released == 1)


async def test_request_that_its_last_client_left_is_not_joined() -> None:
    async with guarded(Held()) as guard:
        flights, asked = guard.handler.flights, UpstreamRequest("GET", "/x", 1, (), None, (), (), b"", 5.0, None)
        flights.start(asked, guard.handler.backend.upstream, lambda _: None).leave()
        assert flights.join(asked) is None
        await until("it has ended", lambda: len(flights) == 0)
