"""A watch of one kind, and the group of watches that receive the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from muster.readcache.hub.event import Event
from muster.readcache.hub.selection import Selection
from muster.readcache.hub.view import View

OnFrames = Callable[[list[bytes]], None]
OnClosed = Callable[[str], None]
GroupKey = tuple[Selection, object]


class Owner(Protocol):
    """The fan-out to which a subscription belongs."""

    version: int

    def version_of(self, serial: int) -> int:
        """Return the version of an event, 0 if it is not in the log."""
        ...

    def catch_up(self, subscription: Subscription) -> None:
        """Pass on what the log has for it."""
        ...

    def end(self, subscription: Subscription, reason: str) -> None:
        """Forget it."""
        ...


class Group:
    """Watches with the same selection and view.

    Attributes:
        pending: (event, type) of events that are not yet flushed.
        newest: the number of the newest event that concerns it, -1 for none.
        truncated: the number of the first event that was not added to `pending` because there were too many, or -1.
    """

    __slots__ = ("key", "members", "newest", "pending", "selection", "truncated", "view")

    def __init__(self, key: GroupKey, selection: Selection, view: View) -> None:
        self.key = key
        self.selection = selection
        self.view = view
        self.members: list[Subscription] = []
        self.pending: list[tuple[Event, str]] = []
        self.newest = -1
        self.truncated = -1


class Subscription:
    """A watch. It holds no events: while it is paused, only its place in the log.

    Attributes:
        closed: "", or why it ended: "slow", "reset", "failed", "stopped", or "closed" by `close`.
        place: the number of the first event that was not passed on and may concern it.
        live: it gets events as they are flushed.
        behind: events that concern it wait in the log.
        waiting: number of events that it missed while it was paused.
        member: its index in the group.
        reached: a version that it had reached when `version` was read last.
    """

    __slots__ = (
        "_owner",
        "behind",
        "closed",
        "group",
        "live",
        "member",
        "on_closed",
        "on_frames",
        "paused",
        "place",
        "reached",
        "waiting",
    )

    def __init__(
        self, owner: Owner, group: Group, version: int, on_frames: OnFrames, on_closed: OnClosed | None
    ) -> None:
        self._owner = owner
        self.paused = False
        self.group = group
        self.member = -1
        self.place = 0
        self.reached = version
        self.on_frames = on_frames
        self.on_closed = on_closed
        self.closed = ""
        self.live = True
        self.behind = False
        self.waiting = 0

    @property
    def version(self) -> int:
        """The newest version up to which everything was passed on or does not concern this watch. It never falls."""
        owner = self._owner
        done = not self.behind and self.group.newest < self.place
        self.reached = max(self.reached, owner.version if done else owner.version_of(self.place - 1))
        return self.reached

    def pause(self) -> None:
        """Pass on nothing until `resume`. After too many missed events, it is closed as "slow"."""
        if not self.closed:
            self.paused = True
            self.live = False

    def resume(self) -> None:
        """Pass on what was missed, and then new events."""
        if self.paused and not self.closed:
            self.paused = False
            self.waiting = 0
            if self.behind:
                self._owner.catch_up(self)
            else:
                self.live = True

    def close(self) -> None:
        """End the watch. `on_closed` is not called."""
        self._owner.end(self, "closed")
