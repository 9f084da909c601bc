"""Turns the observations of checks into findings: states last over several calls; counters and samples add up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from muster.agent.incidents import Incidents
from muster.fleet.health.finding import Finding
from muster.fleet.health.kernellog import PAUSE_S

MESSAGE_MAX: Final = 240
COMPONENT_MAX: Final = 128
REFRESH_S: Final = 240.0
"""A lasting state is reported again at this interval with a later `last_s`, before any policy stops counting it."""


class Sight(NamedTuple):
    """One observation of a call. `times` is for counted events, `looks` for lasting states."""

    check: str
    component: str
    code: str
    message: str = ""
    times: int = 1
    looks: int = 1
    """The number of consecutive calls after which it is reported, so that brief states are not."""
    refresh_s: float = REFRESH_S
    """A lasting state is reported again after this time."""


class Seen(NamedTuple):
    """All observations of one call."""

    states: tuple[Sight, ...] = ()
    """Current states: each is one incident while it lasts."""
    events: tuple[Sight, ...] = ()
    """Events since the last call."""


class _State:
    __slots__ = ("first_s", "last_s", "looks", "message", "reported_s")

    def __init__(self, now_s: float, message: str) -> None:
        self.first_s = self.last_s = now_s
        self.looks = 0
        self.message = message
        self.reported_s: float | None = None


class Findings:
    """Converts the observations of one check to findings.

    Args:
        check: name of the check.
        period_s: the interval of its calls.
    """

    def __init__(self, check: str, period_s: float) -> None:
        self._pause_s = max(PAUSE_S, 2.5 * period_s)
        self._states: dict[tuple[str, str, str], _State] = {}
        self._events = Incidents(check, period_s)

    def take(self, seen: Seen, now_s: float) -> list[Finding]:
        """Return what is new since the last call.

        A state that returns within a pause is the same incident; after a pause it is another one. If the clock is set
        back, the times of an incident do not go back.
        """
        for event in seen.events:
            if event.times > 0:
                self._events.observe(
                    event.check, _text(event.component, COMPONENT_MAX), event.code, now_s,
                    count=event.times, message=_text(event.message, MESSAGE_MAX),
                )  # fmt: skip
        return [*self._lasting(seen.states, now_s), *self._events.take(now_s)]

    def _lasting(self, sights: Iterable[Sight], now_s: float) -> list[Finding]:
        reported, here = [], set[tuple[str, str, str]]()
        for sight in sights:
            key = (sight.check, _text(sight.component, COMPONENT_MAX), sight.code)
            if key in here:
                continue
            here.add(key)
            state = self._states.get(key)
            if state is None or abs(now_s - state.last_s) > self._pause_s:
                state = self._states[key] = _State(now_s, _text(sight.message, MESSAGE_MAX))
            state.looks += 1
            state.last_s = max(state.last_s, now_s)
            if state.looks >= sight.looks and (
                state.reported_s is None or state.last_s - state.reported_s >= sight.refresh_s
            ):
                state.reported_s = state.last_s
                reported.append(
                    Finding(
                        check=key[0], component=key[1], code=key[2], first_s=state.first_s, last_s=state.last_s,
                        message=state.message,
                    )
                )  # fmt: skip
        for key, state in tuple(self._states.items()):
            if key not in here and (state.reported_s is None or now_s - state.last_s > self._pause_s):
                del self._states[key]
        return reported


def _text(text: str, characters: int) -> str:
    """Return one line of printable characters."""
    plain = text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)
    return plain[:characters]
