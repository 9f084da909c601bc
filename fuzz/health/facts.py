"""Facts about node health for checkers, read from the stored JSON: taints, findings, tests and sessions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import datetime

import msgspec

from muster.api.names import LABEL_POOL, LABEL_TEAM, TAINT_QUARANTINE
from muster.embedded.item import Item
from muster.embedded.objects import Obj, decode, items, section
from muster.embedded.store import Store

RECORD = "muster.dev/quarantine-record"
DEAD = "dead"
"""Key of the fault of a node that was found dead."""
WORKING = ("Drain", "ResetGPU", "Reboot", "Replace")


class Entry(msgspec.Struct, frozen=True):
    """A history entry of a session, or our record on a node, which repeats one."""

    rung: str
    event: str
    key: str
    generation: int


class NodeState(msgspec.Struct, frozen=True):
    """One version of a node. `out`: it has our taint; `entry` is what our record beside the taint says."""

    name: str
    uid: str
    boot: str
    pool: str
    team: str
    out: bool
    cordoned: bool
    entry: Entry


class Seen(msgspec.Struct, frozen=True):
    """Evidence against a node: a finding or a failed test."""

    code: str
    time: float
    known_at: float


class Tested(msgspec.Struct, frozen=True):
    """A record of a test."""

    boot: str
    passed: bool
    time: float
    known_at: float


class Asked(msgspec.Struct, frozen=True):
    """A request of an operator."""

    action: str
    time: float
    known_at: float


class Session(msgspec.Struct, frozen=True):
    """One version of a NodeRemediation. `episode` is what its history says since it was opened last."""

    name: str
    node: str
    node_uid: str
    state: str
    rung: str
    message: str
    generation: int
    episode: tuple[Entry, ...]
    held_by: str

    @property
    def out(self) -> bool:
        """Returns whether the session takes the node out of use."""
        return self.state != "Released" and any(each.rung == "Quarantine" for each in self.episode)

    @property
    def joining(self) -> bool:
        """Returns whether the node was not in use yet when it was taken out."""
        return any(each.rung == "Quarantine" and each.event == "Joining" for each in self.episode)

    @property
    def asked_for(self) -> bool:
        """Returns whether an operator asked to take the node out of use. Budgets do not apply then."""
        return any(each.rung == "Quarantine" and each.event == "Requested" for each in self.episode)

    @property
    def found_dead(self) -> bool:
        """Returns whether the node was found dead."""
        return any(each.key == DEAD for each in self.episode)

    @property
    def works(self) -> bool:
        """Returns whether the node is worked on."""
        return self.state == "Open" and self.rung in WORKING

    @property
    def entry(self) -> int:
        """The generation in which the rung was entered that it is on."""
        found = 0
        for each in reversed(self.episode):
            if each.rung != self.rung:
                break
            found = each.generation
        return found

    @property
    def asks_reboot(self) -> bool:
        """Returns whether its present rung asks the machine to reboot."""
        return self.works and any(
            each.rung == "Reboot" and each.event == "RebootRequested" and each.generation >= self.entry
            for each in self.episode
        )


def goes_out(old: NodeState | None, new: NodeState) -> bool:
    """Returns whether a node of the same UID went out of use by this change."""
    return new.out and not (old is not None and old.out and old.uid == new.uid)


NodeHears = Callable[[NodeState | None, NodeState | None], None]
SessionHears = Callable[[Session | None, Session], None]


class HealthFacts:
    """Kept up to date by the store.

    Args:
        store: of the API server.
        clock: the virtual time.
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.nodes: dict[str, NodeState] = {}
        self.boots: dict[str, str] = {}
        self.booted_at: dict[str, float] = {}
        self.against: defaultdict[str, dict[tuple[str, float], Seen]] = defaultdict(dict)
        """By UID of the node, all evidence against it."""
        self.tests: defaultdict[str, list[Tested]] = defaultdict(list)
        self.ended: dict[str, float] = {}
        """By UID of the node, when a test on it ended last; what its record says is by the clock of a leader."""
        self.sessions: dict[str, Session] = {}
        self.pleas: defaultdict[str, list[Asked]] = defaultdict(list)
        """By UID of the node, all requests of operators."""
        self.on_node: list[NodeHears] = []
        self.on_session: list[SessionHears] = []
        store.listeners.append(self._changed)

    def session_of(self, node: NodeState) -> Session | None:
        """The session of the node with this UID."""
        return next((each for each in self.sessions.values() if each.node_uid == node.uid), None)

    def is_out(self, node: NodeState) -> bool:
        """Returns whether the node is out of use by its session, or by the taint that is written before that."""
        session = self.session_of(node)
        if session is not None and session.out:
            return True
        return node.out and (session is None or node.entry.generation > session.generation)

    def uncleared(self, uid: str, known_before: float) -> list[Seen]:
        """Returns the findings against a node since it last passed a test."""
        passed = max((each.time for each in self.tests[uid] if each.passed), default=0.0)
        return [each for each in self.against[uid].values() if each.time >= passed and each.known_at <= known_before]

    def is_kept_out(self, uid: str, for_s: float) -> bool:
        """Returns whether the newest request is an old enough one to keep the node out of use.

        Args:
            uid: the node.
            for_s: the least age of the request, in seconds.
        """
        asked = self.pleas[uid]
        return bool(asked) and asked[-1].action == "Quarantine" and asked[-1].known_at < self._clock() - for_s

    def _changed(self, resource: str, old: Item | None, new: Item | None) -> None:
        if resource == "nodes":
            self._node(old, new)
        elif new is None:
            return
        elif resource == "nodehealths.muster.dev":
            self._health(new.object())
        elif resource == "preflights.muster.dev":
            self._test(new.object()["spec"])
        elif resource == "noderemediations.muster.dev":
            self._session(new.object())

    def _node(self, old: Item | None, new: Item | None) -> None:
        before = self.nodes.pop(old.name, None) if old is not None else None
        state = None
        if new is not None:
            state = self.nodes[new.name] = _state(new.object())
            if self.boots.get(state.uid, state.boot) != state.boot:
                self.booted_at[state.uid] = self._clock()
            self.boots[state.uid] = state.boot
        for hears in self.on_node:
            hears(before, state)

    def _health(self, obj: Obj) -> None:
        status = section(obj, "status")
        for each in items(status, "findings"):
            if each["check"] == "reach":
                continue  # that speaks against another node, if against any
            code, time = f"{each['check']}/{each['code']}", _seconds(each["lastTime"])
            self.against[status["nodeUID"]].setdefault((code, time), Seen(code, time, self._clock()))

    def _test(self, spec: Obj) -> None:
        if "revokedTime" in spec:
            return  # not another test
        uid, passed = spec["nodeUID"], bool(spec["passed"])
        time = self.ended.get(uid, self._clock()) if passed else self._clock()
        self.tests[uid].append(Tested(spec["bootID"], passed, time, self._clock()))
        if not passed:
            self.against[uid].setdefault(("preflight/failed", time), Seen("preflight/failed", time, self._clock()))

    def _session(self, obj: Obj) -> None:
        session = _session(obj)
        request, known = section(section(obj, "spec"), "request"), self.pleas[session.node_uid]
        if request and (not known or known[-1].time != _seconds(request["time"])):
            known.append(Asked(request["action"], _seconds(request["time"]), self._clock()))
        before = self.sessions.get(session.name)
        self.sessions[session.name] = session
        for hears in self.on_session:
            hears(before, session)


def _state(obj: Obj) -> NodeState:
    meta, spec = obj["metadata"], section(obj, "spec")
    labels, keys = section(meta, "labels"), {taint["key"] for taint in items(spec, "taints")}
    boot = section(section(obj, "status"), "nodeInfo").get("bootID", "")
    mark = decode(section(meta, "annotations").get(RECORD, "{}").encode())
    return NodeState(
        meta["name"],
        meta["uid"],
        boot,
        labels.get(LABEL_POOL, ""),
        labels.get(LABEL_TEAM, ""),
        TAINT_QUARANTINE in keys and RECORD in section(meta, "annotations"),
        bool(spec.get("unschedulable")),
        Entry("Quarantine", mark.get("event", ""), mark.get("faultKey", ""), mark.get("generation", 0)),
    )


def _session(obj: Obj) -> Session:
    spec, status = obj["spec"], section(obj, "status")
    state = status.get("state", "Open")
    episode: list[Entry] = []
    for step in items(status, "history"):
        if step["event"] == "Released":
            episode = []
        else:
            episode.append(Entry(step["rung"], step["event"], step.get("faultKey", ""), step.get("generation", 0)))
    rung, message = status.get("rung", "Observe"), status.get("message", "")
    name = obj["metadata"]["name"]
    generation = status.get("generation", 0)
    return Session(
        name, spec["node"], spec["nodeUID"], state, rung, message, generation, tuple(episode), status.get("heldBy", "")
    )


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
