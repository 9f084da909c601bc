"""The order `fair`: users who have used fewer GPU-seconds lately go first within their team and priority.

The gangs of a team keep the places in the queue that they have together: their own priorities and times of arrival.
The order decides which gang has which of these places. So the order among teams does not change. Per team, rank and
priority:

1. A user whose first gang in a queue has waited `fair_wait_max_s` without a start from that queue goes first.
2. Then come gangs by the usage of their user, and gangs of users with the same usage by arrival. A gang counts the
   gangs of its user before it as if they ran until the order is computed again. So users with the same usage take
   turns.
3. The gangs of one user in one queue stay in the order of their own priorities and arrival.

The first rule is the bound on waiting. After `fair_wait_max_s` without a start, at most one gang of each other user is
in front of a user's first gang in a queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from muster.scheduler.gangs.accounts import Account
from muster.scheduler.gangs.gang import Gang, Place
from muster.scheduler.gangs.usage import QueueKey, weight_of
from muster.scheduler.plan import Settings
from muster.scheduler.state import ClusterState

PACE_S = 60.0
"""The order is computed again after this time."""
MOVES_MAX = 1000
"""Maximum number of gangs that one plan moves in the queue. The next plans move the others."""

_Turn = tuple[Account, QueueKey]


def fair_places(
    gangs: Iterable[Gang],
    used: Mapping[Account, float],
    started: Mapping[_Turn, float],
    now: float,
    wait_max_s: float,
) -> dict[str, Place]:
    """Return the places of gangs in the order `fair`, the first gang of each team first.

    Gangs without other users in their team have their own places, and are left out.

    Args:
        gangs: the waiting gangs.
        used: decayed GPU-seconds of each account.
        started: when the last gang of each user was started from each queue.
        now: seconds since the epoch.
        wait_max_s: a user whose gangs waited this long without a start goes first.
    """
    teams: dict[tuple[int, int, str], list[Gang]] = defaultdict(list)
    for gang in gangs:
        teams[-gang.traits.rank, -gang.priority, gang.team].append(gang)
    places: dict[str, Place] = {}
    for team in teams.values():
        team.sort(key=lambda gang: gang.own_place)
        if len({gang.accounts[0] for gang in team}) > 1:
            in_order = _by_usage(team, used, started, now, wait_max_s)
            places.update((gang.key, at.own_place) for gang, at in zip(in_order, team, strict=True))
    return places


def _by_usage(
    team: list[Gang], used: Mapping[Account, float], started: Mapping[_Turn, float], now: float, wait_max_s: float
) -> list[Gang]:
    keys: list[tuple[bool, float, Place]] = []
    seen: set[_Turn] = set()
    ahead: dict[Account, float] = {}
    for gang in team:
        user = gang.accounts[0]
        usage = ahead.get(user, used.get(user, 0.0))
        overdue = False
        if gang.queued_as is not None and (turn := (user, gang.queued_as[0])) not in seen:
            seen.add(turn)
            overdue = now - max(gang.arrival, started.get(turn, 0.0)) >= wait_max_s
        keys.append((not overdue, 0.0 if overdue else usage, gang.own_place))
        ahead[user] = usage + weight_of(gang) * PACE_S
    return [gang for _, gang in sorted(zip(keys, team, strict=True), key=lambda item: item[0])]


class FairOrder:
    """Keeps the places of waiting gangs up to date, at intervals."""

    def __init__(self) -> None:
        self._next = 0.0
        self._in_use = False
        self._moves: list[tuple[Gang, Place | None]] = []

    def apply(self, state: ClusterState, settings: Settings, now: float) -> bool:
        """Move gangs whose place changed, at most `MOVES_MAX` of them. Return whether more gangs have to be moved."""
        fair = settings.order == "fair"
        if not 0.0 <= self._next - now <= PACE_S or fair is not self._in_use:
            state.usage.set_half_life(settings.usage_half_life_s)
            state.usage.forget_old(now, settings.fair_wait_max_s)
            self._moves = list(_moves(state, settings, now)) if fair or self._in_use else []
            self._next, self._in_use = now + PACE_S, fair
        moves, self._moves = self._moves[:MOVES_MAX], self._moves[MOVES_MAX:]
        for gang, place in moves:
            if gang.queued_as is not None:
                state.set_place(gang, place)
        return bool(self._moves)

    def apply_all(self, state: ClusterState, settings: Settings, now: float) -> None:
        """Move all gangs whose place changed, for commands that plan once."""
        while self.apply(state, settings, now):
            pass


def _moves(state: ClusterState, settings: Settings, now: float) -> Iterable[tuple[Gang, Place | None]]:
    places: Mapping[str, Place] = {}
    gangs = {gang.key: gang for gang in state.queued()}
    if settings.order == "fair":
        usage = state.usage
        places = fair_places(gangs.values(), usage.totals(now), usage.started, now, settings.fair_wait_max_s)
    for key, place in places.items():
        if gangs[key].place != place:
            yield gangs[key], place
    for gang in gangs.values():
        if gang.key not in places and gang.place is not None:
            yield gang, None
