"""Samples of the requests that an API server executes, by user: a profile of who keeps it busy.

Source: API Priority and Fairness, `/debug/api_priority_and_fairness/dump_requests` (Kubernetes docs: "Flow control",
Debug endpoints). Watches are listed only while they start, since they give up their seats then.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from muster.doctor.rule import Context

_PATH: Final = "/debug/api_priority_and_fairness/dump_requests"
_RIGHT: Final = "get nonResourceURL /debug/api_priority_and_fairness/*"
_WHAT: Final = "which users keep the API server busy"
_LOOKS: Final = 20
"""Samples in a window. Each holds the server's lock on flow control for as long as writing its few lines takes."""
_LEAST_S: Final = 0.2
_COLUMNS: Final = {
    "FlowSchemaName": "flow",
    "PriorityLevelName": "level",
    "UserName": "user",
    "Verb": "verb",
    "APIPath": "path",
    "APIVersion": "api_version",
    "Resource": "resource",
    "SubResource": "subresource",
    "InitialSeats": "seats",
}
_ROWS_MAX: Final = 2000


class Use(NamedTuple):
    """A class of requests of one user.

    Attributes:
        user: user name.
        verb: verb of RBAC.
        group: API group.
        resource: plural name, "" for other paths.
        subresource: such as `status`.
        flow: FlowSchema.
        level: priority level.
    """

    user: str
    verb: str
    group: str
    resource: str
    subresource: str
    flow: str
    level: str


class Sampled(msgspec.Struct, frozen=True):
    """How busy the API servers were, by class of requests.

    Attributes:
        seats: seats in use or waited for, on average over the samples.
        samples: number of samples.
    """

    seats: dict[Use, float]
    samples: int

    def shares(self, keep: Callable[[Use], bool]) -> list[tuple[str, float]]:
        """Return users and their shares of the requests that `keep` chooses, the busiest one first."""
        found: dict[str, float] = {}
        for use, seats in self.seats.items():
            if keep(use):
                found[use.user] = found.get(use.user, 0.0) + seats
        whole = sum(found.values())
        return [(user, seats / whole) for user, seats in sorted(found.items(), key=lambda entry: -entry[1])]


async def collect_requests(context: Context) -> Sampled | None:
    """Sample the requests of all API servers while the window lasts."""
    clock = asyncio.get_running_loop().time
    every_s = max(context.options.window_s / _LOOKS, _LEAST_S)
    until = clock() + context.options.window_s
    seats: Counter[Use] = Counter()
    samples = 0
    while True:
        for client in context.clients:
            body = await context.reader.read(
                _PATH,
                what=_WHAT,
                right=_RIGHT,
                params={"includeRequestDetails": "1"},
                accept="text/plain",
                client=client,
            )
            if body is None:
                return None if not samples else _sampled(seats, samples)
            for use, weight in parse_requests(body.decode("utf-8", "replace")):
                seats[use] += weight
        samples += 1
        if clock() + every_s > until:
            return _sampled(seats, samples)
        await asyncio.sleep(every_s)


def _sampled(seats: Counter[Use], samples: int) -> Sampled:
    return Sampled({use: count / samples for use, count in seats.items()}, samples)


def parse_requests(text: str) -> Iterable[tuple[Use, int]]:
    """Yield the requests of one dump and their seats.

    The columns are found by their titles, because their number has grown. Rows of users with a comma in their name are
    skipped, because the API server does not quote. So are requests for this page itself.
    """
    head, *rows = text.split("\n")
    titles = [title.strip() for title in head.split(",")]
    if "UserName" not in titles:
        return
    at = {name: titles.index(title) for title, name in _COLUMNS.items() if title in titles}
    for row in rows[:_ROWS_MAX]:
        cells = [cell.strip() for cell in row.split(",")]
        if len(cells) != len(titles):
            continue
        of = {name: cells[index] for name, index in at.items()}
        if of.get("path", "").startswith("/debug/api_priority_and_fairness/"):
            continue
        group = of.get("api_version", "").rpartition("/")[0]
        use = Use(
            of["user"],
            of.get("verb", ""),
            group,
            of.get("resource", ""),
            of.get("subresource", ""),
            of.get("flow", ""),
            of.get("level", ""),
        )
        seats = of.get("seats", "")
        yield use, max(int(seats), 1) if seats.isdigit() else 1
