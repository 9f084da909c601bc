"""Issue 17, A2: a caller with many new queries does not keep others from being priced."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from muster.sim.virtual.loop import VirtualLoop
from muster.telemetry.guard.callers.caller import Caller
from muster.telemetry.guard.serving.assessment import Assessment
from muster.telemetry.guard.serving.failure import Failure
from muster.telemetry.guard.serving.pricingturns import AT_ONCE, WAIT_S, WAITING_MAX, PricingTurns
from tests.support.waiting import until
from tests.unit.telemetry.guard.serving.guarded import Allowing, answer, guarded

USERS = """callers:
  anonymous: default
  peers: [{name: grafana, addresses: [127.0.0.0/8]}]
"""


class Slow:
    """Prices of alice's requests do not come before `go`."""

    def __init__(self, inner: Allowing) -> None:
        self.inner = inner
        self.go = asyncio.Event()
        self.pricing = 0

    async def __call__(
        self,
        method: str,
        path: str,
        parameters: tuple[tuple[str, str], ...],
        content_type: str,
        body: bytes,
        caller: Caller,
    ) -> Assessment:
        if caller.name == "grafana/alice":
            self.pricing += 1
            await self.go.wait()
        return await self.inner(method, path, parameters, content_type, body, caller)


@pytest.mark.parametrize(("dry_run", "priced"), [("", AT_ONCE), ("dryRun: true", AT_ONCE + 4)])
async def test_one_caller_has_few_requests_priced_at_once(dry_run: str, priced: int) -> None:
    async with guarded(answer, config=USERS + dry_run) as guard:
        slow = Slow(guard.assess)
        guard.handler.backend = replace(guard.handler.backend, assess=slow)

        async def ask(number: int, user: str) -> int:
            return (await guard.get(f"/api/v1/query?query=x{number}", f"X-Grafana-User: {user}")).status

        tasks = [asyncio.create_task(ask(number, "alice")) for number in range(AT_ONCE + 4)]
        await until("alice's requests are priced", lambda: slow.pricing == priced)
        assert await ask(0, "bob") == 200
        assert slow.pricing == priced
        slow.go.set()
        assert set(await asyncio.gather(*tasks)) == {200}


def test_waits_for_a_price_end_and_leave_nothing() -> None:
    async def scenario() -> None:
        turns, ended = PricingTurns(), asyncio.Event()

        async def hold() -> None:
            async with turns.turn("a"):
                await ended.wait()

        held = [asyncio.create_task(hold()) for _ in range(AT_ONCE)]
        waiting = [asyncio.create_task(hold()) for _ in range(WAITING_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(Failure) as full:
            await hold()
        assert full.value.status == 429
        waiting.pop().cancel()
        began_s = asyncio.get_running_loop().time()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(each, Failure) and each.status == 429 for each in found)
        assert asyncio.get_running_loop().time() - began_s == WAIT_S
        ended.set()
        await asyncio.gather(*held)
        await asyncio.sleep(0)
        assert len(turns) == 0

    VirtualLoop.new().run(scenario())
