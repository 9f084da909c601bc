"""Prices requests and decides about them, for the handler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from muster.telemetry.guard.callers.caller import Caller
from muster.telemetry.guard.config import GuardConfig
from muster.telemetry.guard.decide import Allow, Refuse, decide
from muster.telemetry.guard.pricing.price import Price
from muster.telemetry.guard.pricing.pricer import Pricer
from muster.telemetry.guard.query.errors import BadRequest, NotListed
from muster.telemetry.guard.query.operation import Operation
from muster.telemetry.guard.query.parsing import parse
from muster.telemetry.guard.serving.assessment import Assessment
from muster.telemetry.guard.serving.failure import Failure
from muster.telemetry.guard.serving.offer import with_allowed_form
from muster.telemetry.guard.serving.presence import Presence

PASSED: Final = "passed"
"""Endpoint of paths that the configuration allows without a price."""
UNPARSED: Final = "unparsed"
"""Endpoint of requests that were not understood, in a dry run."""
COST_HEADER: Final = "X-Guard-Cost"
NOTES_HEADER: Final = "X-Guard-Notes"
_RETRY_S: Final = 5.0
_CHANGES: Final = ("/api/v1/admin/", "/-/")
"""Paths below which requests delete series, stop the server, or load its files again."""
_FIXED_COST: Final = 1.0
_DRY_RUN_S: Final = 3600.0
"""Deadline of a request in a dry run, in which only Prometheus' own timeouts count."""


class Refusal(Failure):
    """A request that is too dear.

    Attributes:
        assessed: what would have been sent.
    """

    def __init__(self, refuse: Refuse, assessed: Assessment) -> None:
        details: dict[str, Any] = {
            "price": {**msgspec.to_builtins(refuse.price), "cost": refuse.price.cost},
            "limit": refuse.limit,
            "cheaper": refuse.cheaper,
        }
        if refuse.reason == "unknown_price":  # Prometheus is away or too busy for probes
            super().__init__(
                "no_price", 503, refuse.message, retry_after_s=_RETRY_S, reason=refuse.reason, details=details
            )
        else:
            super().__init__("refused", refuse.status, refuse.message, reason=refuse.reason, details=details)
        self.assessed = assessed


class Assessor:
    """Prices requests and decides about them.

    Args:
        config: limits of groups, and paths that are passed on.
        pricer: asks Prometheus for what it needs.
        site: returns the key under which a caller's prices are kept.
        wall_clock: seconds since the epoch.
        presence: whether Prometheus can be reached.
    """

    def __init__(
        self,
        config: GuardConfig,
        pricer: Pricer,
        site: Callable[[Caller], str],
        wall_clock: Callable[[], float],
        presence: Presence,
    ) -> None:
        self._config = config
        self._pricer = pricer
        self._site = site
        self._wall_clock = wall_clock
        self._presence = presence
        self._exact = frozenset(path for path in config.allow_paths if not path.endswith("/"))
        self._below = tuple(path for path in config.allow_paths if path.endswith("/"))

    async def __call__(
        self,
        method: str,
        path: str,
        parameters: tuple[tuple[str, str], ...],
        content_type: str,
        body: bytes,
        caller: Caller,
    ) -> Assessment:
        """Return what may be sent.

        Raises:
            Failure: the request is not valid, its path is denied, or Prometheus is away.
            Refusal: the request is too dear, or has no price.
        """
        try:
            operation = parse(method, path, parameters, content_type, body, self._wall_clock())
        except NotListed:
            if path in self._exact or (self._below and path.startswith(self._below)):
                return self._as_sent(PASSED, method, parameters, body, caller)
            raise Failure("denied_path", 403, f"{path} is denied: {_denied_because(path)}") from None
        except BadRequest as error:
            if self._config.dry_run:
                return self._as_sent(UNPARSED, method, parameters, body, caller)
            raise Failure("bad_request", error.status, error.message) from None
        return await self._decide(operation, caller)

    def _as_sent(
        self, endpoint: str, method: str, parameters: tuple[tuple[str, str], ...], body: bytes, caller: Caller
    ) -> Assessment:
        dry_run, limits = self._config.dry_run, self._config.group(caller.group).limits
        return Assessment(
            endpoint=endpoint,
            parameters=parameters,
            body=body if method == "POST" else None,
            cost=_FIXED_COST,
            timeout_s=_DRY_RUN_S if dry_run else limits.timeout_s,
            max_bytes=None if dry_run else limits.max_answer_bytes,
        )

    async def _decide(self, operation: Operation, caller: Caller) -> Assessment:
        config, limits = self._config, self._config.group(caller.group).limits
        site = self._site(caller)
        price = await self._pricer.price(operation, site, limits.added_range_s)
        capabilities = await self._pricer.capabilities(site)
        open_price = Price(known="guess") if price is None and config.when_unknown == "allow" else price
        verdict = decide(operation, open_price, limits, capabilities)
        away = self._presence.failure if isinstance(verdict, Refuse) and verdict.reason == "unknown_price" else None
        if away is not None and not config.dry_run:
            raise away  # its price is unknown because Prometheus is away, whatever the request asks
        # A dry run changes nothing, so only Prometheus' own timeout counts.
        changed = verdict if isinstance(verdict, Allow) and not config.dry_run else None
        assessed = Assessment(
            endpoint=operation.kind,
            parameters=operation.parameters if changed is None else changed.parameters,
            body=operation.body,
            asked=(operation.parameters, limits),
            operation=operation,
            price=price,
            cost=price.cost if price is not None else _FIXED_COST,
            timeout_s=_DRY_RUN_S if changed is None else changed.timeout_s,
            max_bytes=None if config.dry_run else limits.max_answer_bytes,
            headers=_headers(price, changed.notes if changed is not None else ()),
            reason=verdict.reason if isinstance(verdict, Refuse) and away is None else "",
        )
        if isinstance(verdict, Refuse) and not config.dry_run:

            async def decided(asked: Operation) -> Allow | Refuse:
                return decide(asked, await self._pricer.price(asked, site, limits.added_range_s), limits, capabilities)

            raise Refusal(await with_allowed_form(verdict, operation.now_s, decided), assessed)
        return assessed


def _denied_because(path: str) -> str:
    if path.startswith(_CHANGES):
        return "such requests change the server; send them to the server itself"
    if path == "/":
        return "the guard passes on requests of the API only, such as /api/v1/query"
    return "the guard cannot price it; the operator may add it to allowPaths"


def _headers(price: Price | None, notes: Sequence[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    if price is not None:
        found[COST_HEADER] = f"{price.cost:.0f}; {price.known}"
    if notes:
        found[NOTES_HEADER] = "; ".join(notes)
    return found
