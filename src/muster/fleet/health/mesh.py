"""Combines the nodes' probes of each other, and finds the fault: a node, its switch or zone, or only the prober.

    pairs ─► domains cut off ─► probers that reach no node, but are reached ─► nodes that are not reached

If one step explains a failed probe, the next steps ignore that probe. A domain is at fault only if several other
domains do not reach it. If just two domains do not reach each other, they are reported as a pair, and neither is
blamed. A node is at fault if most nodes that probe it, and at least two, do not reach it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from muster.api.node_health import NodeHealth
from muster.fleet.health.finding import Finding
from muster.fleet.health.peers import UNREACHED, Member, choose, domains_of

CHECK: Final = "reach"
CODES: Final = frozenset({(CHECK, "node"), (CHECK, "switch"), (CHECK, "prober")})

LASTS_S: Final = 300.0
"""Agents repeat lasting failures more often than this. A failure that is older than this in its record has ended."""

_MOST: Final = 0.75
_PAIRS_MIN: Final = 2


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The last report of one node about others.

    Attributes:
        time_s: when it reported, Unix seconds.
        unreached: names of the nodes that this node did not reach.
        missed_s: for each of these names, when the failure was last reported.
    """

    time_s: float
    unreached: frozenset[str] = frozenset()
    missed_s: Mapping[str, float] = msgspec.field(default_factory=dict)


def report_of(health: NodeHealth) -> Report | None:
    """Return what a node's record reports about other nodes; None if its agent has not written it yet."""
    status = health.status
    if status.time is None:
        return None
    time_s = status.time.timestamp()
    missed_s: dict[str, float] = {}
    for finding in status.findings:
        last_s = finding.last_time.timestamp()
        if (finding.check, finding.code) == (CHECK, UNREACHED) and time_s - last_s <= LASTS_S:
            missed_s[finding.component] = max(last_s, missed_s.get(finding.component, last_s))
    return Report(time_s=time_s, unreached=frozenset(missed_s), missed_s=missed_s)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes and domains at fault, by name. Each name is in one list only; a faulty domain's nodes are in no list.

    Attributes:
        nodes: most nodes that probe them do not reach them.
        domains: faulty switches and zones, with the path to them: `a/7`.
        probers: other nodes reach them, but they reach no other node.
        splits: pairs of domains that do not reach each other, when the faulty one cannot be determined.
    """

    nodes: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    probers: tuple[str, ...] = ()
    splits: tuple[tuple[str, str], ...] = ()


class _Pair(NamedTuple):
    prober: str
    target: str
    failed: bool


class _Score:
    """Counts probes and failures."""

    __slots__ = ("failed", "tried")

    def __init__(self) -> None:
        self.tried = self.failed = 0

    def add(self, failed: bool) -> None:
        self.tried += 1
        self.failed += failed

    @property
    def mostly(self) -> bool:
        """Whether most probes failed, with enough probes."""
        return self.tried >= _PAIRS_MIN and self.failed >= _MOST * self.tried


def judge(members: Sequence[Member], reports: Mapping[str, Report], now_s: float, fresh_s: float) -> Verdict:
    """Return which nodes and domains are at fault.

    Args:
        members: all nodes, from the same list that the probing nodes used.
        reports: by node.
        now_s: Unix seconds.
        fresh_s: a report older than this is ignored.
    """
    fresh = {name: report for name, report in reports.items() if now_s - report.time_s <= fresh_s}
    pairs = [
        _Pair(prober, target, target in fresh[prober].unreached)
        for prober, targets in choose(members).items()
        if prober in fresh
        for target in targets
    ]
    if not any(pair.failed for pair in pairs):
        return Verdict()
    domains = {member.name: domains_of(member) for member in reversed(members)}
    bad, splits, pairs = _cut_off(pairs, domains, fresh)
    probers = _only_looking(pairs)
    by_target: dict[str, _Score] = {}
    for pair in pairs:
        if pair.prober not in probers:
            by_target.setdefault(pair.target, _Score()).add(pair.failed)
    nodes = {name for name, score in by_target.items() if score.mostly}
    return Verdict(
        nodes=tuple(sorted(nodes)),
        domains=tuple(sorted(bad)),
        probers=tuple(sorted(probers - nodes)),
        splits=tuple(sorted(splits)),
    )


def findings(verdict: Verdict, members: Iterable[Member], now_s: float) -> dict[str, Finding]:
    """Return the finding for each node at fault. All nodes of a faulty switch or zone get one that names it."""
    found: dict[str, Finding] = {}

    def say(name: str, code: str, component: str, words: str) -> None:
        found[name] = Finding(
            check=CHECK, component=component, code=code, first_s=now_s, last_s=now_s, message=words
        )  # fmt: skip

    for member in members:
        domain = next((each for each in domains_of(member) if each in verdict.domains), None)
        if domain is not None:
            say(member.name, "switch", domain, "nodes outside do not reach the nodes in it")
        elif member.name in verdict.nodes:
            say(member.name, "node", "", "most nodes that probe it do not reach it")
        elif member.name in verdict.probers:
            say(member.name, "prober", "", "other nodes reach it, but it does not reach most nodes that it probes")
    return found


def _cut_off(
    pairs: Sequence[_Pair], domains: Mapping[str, tuple[str, ...]], fresh: Mapping[str, Report]
) -> tuple[set[str], set[tuple[str, str]], list[_Pair]]:
    """Find domains that several others do not reach, outermost first.

    Also return the pairs that these do not explain.
    """
    bad, splits, left = set[str](), set[tuple[str, str]](), list(pairs)
    for depth in range(max((len(each) for each in domains.values()), default=0)):
        between = dict(_between(left, domains, depth))
        cut = {
            ends for ends, (score, inside) in between.items()
            if score.mostly and len(inside[ends[0]]) > 1 and len(inside[ends[1]]) > 1
        }  # fmt: skip
        tried: dict[str, int] = {}
        failed: dict[str, int] = {}
        for ends in between:
            for end in ends:
                tried[end] = tried.get(end, 0) + 1
                failed[end] = failed.get(end, 0) + (ends in cut)
        silent = {end for end in tried if not any(end in domains[name] for name in fresh if name in domains)}
        here = {
            end for end, count in failed.items()
            if count >= _MOST * tried[end] and count and (count >= _PAIRS_MIN or end in silent)
        }  # fmt: skip
        if here == set(tried):
            here &= silent  # no other domain is left as a witness
        bad |= here
        splits |= {ends for ends in cut if not set(ends) & here}
        left = [
            pair for pair in left
            if not any(each in here for name in pair[:2] for each in domains[name][depth : depth + 1])
            and _ends(pair, domains, depth) not in cut
        ]  # fmt: skip
    return bad, splits, left


def _between(
    pairs: Iterable[_Pair], domains: Mapping[str, tuple[str, ...]], depth: int
) -> Iterator[tuple[tuple[str, str], tuple[_Score, dict[str, set[str]]]]]:
    """Yield each pair of domains with the score of their probes, and the nodes that took part."""
    scores: dict[tuple[str, str], tuple[_Score, dict[str, set[str]]]] = {}
    for pair in pairs:
        ends = _ends(pair, domains, depth)
        if ends is None:
            continue
        score, inside = scores.setdefault(ends, (_Score(), {end: set() for end in ends}))
        score.add(pair.failed)
        for name in pair[:2]:
            inside[domains[name][depth]].add(name)
    yield from scores.items()


def _ends(pair: _Pair, domains: Mapping[str, tuple[str, ...]], depth: int) -> tuple[str, str] | None:
    """Return the two domains that a pair connects; None within one domain."""
    ends = [domains[name][depth] for name in pair[:2] if len(domains[name]) > depth]
    return (min(ends), max(ends)) if len(ends) == 2 and ends[0] != ends[1] else None


def _only_looking(pairs: Sequence[_Pair]) -> set[str]:
    """Return the probers that fail to reach most of their targets, although most other probers reach those targets."""
    of_prober: dict[str, _Score] = {}
    of_target: dict[str, dict[str, bool]] = {}
    for pair in pairs:
        of_prober.setdefault(pair.prober, _Score()).add(pair.failed)
        of_target.setdefault(pair.target, {})[pair.prober] = pair.failed
    found = set()
    for name, score in of_prober.items():
        if not score.mostly:
            continue
        alone = _Score()
        for target in (pair.target for pair in pairs if pair.prober == name and pair.failed):
            others = [failed for prober, failed in of_target[target].items() if prober != name]
            alone.add(bool(others) and sum(others) * 2 <= len(others))
        if alone.failed * 3 >= alone.tried * 2:
            found.add(name)
    return found
