"""What one look saw, and how looks become findings: states last, counters and samples add up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from muster.agent.incidents import Incidents
from muster.fleet.health.finding import Finding
from muster.fleet.health.kernellog import PAUSE_S

MESSAGE_MAX: Final = 240
COMPONENT_MAX: Final = 128
REFRESH_S: Final = 240.0
"""A state that lasts is told again so often, with a later `last_s`: sooner than any policy stops counting it."""


class Sight(NamedTuple):
    """One thing seen in one look; `times` is of use where things are counted, `looks` where states last."""

    check: str
    component: str
    code: str
    message: str = ""
    times: int = 1
    looks: int = 1
    """It counts from so many looks on end; what comes and goes by itself is not told."""
    refresh_s: float = REFRESH_S
    """A state that lasts is reported again after so long."""


class Seen(NamedTuple):
    """All of one look."""

    states: tuple[Sight, ...] = ()
    """What is so now: one incident for as long as it stays so."""
    events: tuple[Sight, ...] = ()
    """What happened since the last look."""


class _State:
    __slots__ = ("first_s", "last_s", "looks", "message", "told_s")

    def __init__(self, now_s: float, message: str) -> None:
        self.first_s = self.last_s = now_s
        self.looks = 0
        self.message = message
        self.told_s: float | None = None


class Findings:
    """Makes findings of what one check saw.

    Args:
        check: name of the check.
        period_s: how often it looks.
    """

    def __init__(self, check: str, period_s: float) -> None:
        self._pause_s = max(PAUSE_S, 2.5 * period_s)
        self._states: dict[tuple[str, str, str], _State] = {}
        self._events = Incidents(check, period_s)

    def take(self, seen: Seen, now_s: float) -> list[Finding]:
        """Return what is new since the last look.

        A state that ended and is back within a pause goes on; after a pause it is another incident. A clock that was
        set back never makes times of an incident go backwards.
        """
        for event in seen.events:
            if event.times > 0:
                self._events.observe(
                    event.check, _text(event.component, COMPONENT_MAX), event.code, now_s,
                    count=event.times, message=_text(event.message, MESSAGE_MAX),
                )  # fmt: skip
        return [*self._lasting(seen.states, now_s), *self._events.take(now_s)]

    def _lasting(self, sights: Iterable[Sight], now_s: float) -> list[Finding]:
        told, here = [], set[tuple[str, str, str]]()
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
            if state.looks >= sight.looks and (state.told_s is None or state.last_s - state.told_s >= sight.refresh_s):
                state.told_s = state.last_s
                told.append(
                    Finding(
                        check=key[0], component=key[1], code=key[2], first_s=state.first_s, last_s=state.last_s,
                        message=state.message,
                    )
                )  # fmt: skip
        for key, state in tuple(self._states.items()):
            if key not in here and (state.told_s is None or now_s - state.last_s > self._pause_s):
                del self._states[key]
        return told


def _text(text: str, characters: int) -> str:
    """One line of printable characters."""
    plain = text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)
    return plain[:characters]
