"""Parses the ConfigMap `muster-teams`: pools of nodes, and each team's share.

    teamKey: muster.dev/team         # label and taint of nodes
    namespaceKey: muster.dev/team    # label of namespaces that names their team (default: teamKey)
    runningGangs: Wait               # a node changes teams after its gang ends; Move: at once, and its gang moves
    allocations:
    - {nodeSelector: {gpu: h100}, team: vision, amount: 40}
    - {nodeSelector: {gpu: h100}, team: speech, amount: 25%}

Allocations with equal selectors share one pool. Percentages are of all nodes of the pool. The rest has no team.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import combinations
from typing import Literal

import msgspec
import yaml

from muster.api.marked import place_of
from muster.api.names import LABEL_TEAM, TEAMS_CONFIG_KEY
from muster.teams.yaml_reader import Entry, Problem, Reader, TeamsConfigError

Selector = tuple[tuple[str, str], ...]
"""Required labels of a node, sorted."""
RunningGangs = Literal["Wait", "Move"]

_FIELDS = ("teamKey", "namespaceKey", "runningGangs", "allocations")
_SHARE_FIELDS = ("nodeSelector", "team", "amount")
_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_VALUE = re.compile(_NAME)
_DOMAIN = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*"
_LABEL = re.compile(rf"(?:(?=.{{1,253}}/){_DOMAIN}/)?{_NAME}")
_COUNT = re.compile(r"[0-9]{1,9}")
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%")


class Share(msgspec.Struct, frozen=True):
    """A team's share of a pool: a number of nodes, or `percent` of them if that is set."""

    team: str
    count: int = 0
    percent: Fraction | None = None

    def __str__(self) -> str:
        return f"{float(self.percent):g}%" if self.percent is not None else str(self.count)


class PoolConfig(msgspec.Struct, frozen=True):
    """Nodes that have all labels of `selector`, and the shares of them, in the order of the ConfigMap."""

    selector: Selector
    shares: tuple[Share, ...]

    @property
    def name(self) -> str:
        """The selector in kubectl's syntax."""
        return ",".join(f"{key}={value}" for key, value in self.selector)


class TeamsConfig(msgspec.Struct, frozen=True):
    """The whole ConfigMap. Without pools it allocates nothing, and nodes keep their owners."""

    team_key: str = LABEL_TEAM
    namespace_key: str = LABEL_TEAM
    running_gangs: RunningGangs = "Wait"
    pools: tuple[PoolConfig, ...] = ()


def parse(text: str) -> TeamsConfig:
    """Parse the text of `teams.yaml`. Raises TeamsConfigError with all its problems."""
    reader = Reader(text)
    fields = reader.mapping(reader.root(), "the file", _FIELDS) if not reader.empty else {}
    team_key = _key(reader, fields.get("teamKey"), LABEL_TEAM)
    namespace_key = _key(reader, fields.get("namespaceKey"), team_key)
    running: RunningGangs = "Wait"
    if "runningGangs" in fields:
        wanted = reader.text(fields["runningGangs"], "runningGangs")
        if wanted == "Move":
            running = "Move"
        elif wanted is not None and wanted != "Wait":
            reader.wrong(fields["runningGangs"], f"runningGangs is {wanted!r}", "use Wait or Move")
    pools = _pools(reader, fields["allocations"], team_key) if "allocations" in fields else ()
    reader.check()
    return TeamsConfig(team_key, namespace_key, running, pools)


def from_data(data: Mapping[str, str]) -> TeamsConfig:
    """Parse the data of the ConfigMap; no data means an empty configuration. Raises TeamsConfigError."""
    if not data:
        return TeamsConfig()
    if TEAMS_CONFIG_KEY not in data:
        others = ", ".join(sorted(data))
        raise TeamsConfigError([Problem(0, f"no key {TEAMS_CONFIG_KEY}", f"the data has {others}: rename it")])
    return parse(data[TEAMS_CONFIG_KEY])


def parse_manifest(text: str) -> TeamsConfig:
    """Parse either form; line numbers refer to the file. Raises TeamsConfigError."""
    reader = Reader(text)
    root = reader.root().node if not reader.empty else None
    fields = _entries(root)
    kind = fields.get("kind")
    if not isinstance(kind, yaml.ScalarNode) or kind.value != "ConfigMap":
        return parse(text)
    data = _entries(fields.get("data"))
    held = data.get(TEAMS_CONFIG_KEY)
    if not isinstance(held, yaml.ScalarNode):
        return from_data(dict.fromkeys(data, ""))
    try:
        return parse(str(held.value))
    except TeamsConfigError as error:
        # A block scalar begins on the line after its indicator; a quoted scalar begins on the same line.
        offset = place_of(held).line - 1 + (held.style in ("|", ">"))
        found = [Problem(each.line and each.line + offset, each.what, each.change) for each in error.problems]
        raise TeamsConfigError(found) from None


def _entries(node: yaml.Node | None) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(key.value): value for key, value in node.value if isinstance(key, yaml.ScalarNode)}


class _Tuple(msgspec.Struct, frozen=True):
    """One allocation and its position in the text."""

    at: Entry
    selector: Selector
    share: Share


def _pools(reader: Reader, allocations: Entry, team_key: str) -> tuple[PoolConfig, ...]:
    found = [
        made
        for each in reader.sequence(allocations, "allocations")
        if (made := _allocation(reader, each, team_key)) is not None
    ]
    pools: dict[Selector, list[_Tuple]] = {}
    for each in found:
        pools.setdefault(each.selector, []).append(each)
    for members in pools.values():
        _check_pool(reader, members)
    for one, two in combinations(pools, 2):
        if _may_overlap(one, two):
            later = pools[two][0]
            reader.wrong(
                later.at,
                f"nodeSelector {_said(two)} and {_said(one)} of line {pools[one][0].at.line} may select the same node",
                "make the selectors equal (one pool), or add to both a label with different values",
            )
    return tuple(PoolConfig(selector, tuple(each.share for each in members)) for selector, members in pools.items())


def _allocation(reader: Reader, entry: Entry, team_key: str) -> _Tuple | None:
    fields = reader.mapping(entry, "an allocation", _SHARE_FIELDS)
    missing = [name for name in _SHARE_FIELDS if name not in fields]
    if missing:
        if fields or not reader.problems:
            reader.wrong(
                entry,
                f"the allocation has no {' and no '.join(missing)}",
                "write nodeSelector, team and amount in every allocation",
            )
        return None
    selector = _selector(reader, fields["nodeSelector"], team_key)
    team = reader.text(fields["team"], "team")
    if team is not None and not _VALUE.fullmatch(team):
        reader.wrong(fields["team"], f"team {team!r} is not a label value", _VALUE_HINT)
        team = None
    share = _amount(reader, fields["amount"], team or "")
    if selector is None or team is None or share is None:
        return None
    return _Tuple(entry, selector, share)


_VALUE_HINT = "use at most 63 letters, digits, '-', '_' or '.', a letter or digit at both ends"


def _selector(reader: Reader, entry: Entry, team_key: str) -> Selector | None:
    labels = reader.mapping(entry, "nodeSelector")
    if not labels:
        reader.wrong(
            entry, "nodeSelector names no label", "name at least one label: an empty selector would select every node"
        )
        return None
    found = []
    for key, value in labels.items():
        text = reader.text(value, f"label {key}")
        if not _LABEL.fullmatch(key):
            reader.wrong(value, f"{key!r} is not a label key", "use NAME or DOMAIN/NAME")
        elif key == team_key:
            reader.wrong(
                value, f"nodeSelector uses {key}, the label that Muster itself writes for teams", "use another label"
            )
        elif text is not None and text and not _VALUE.fullmatch(text):
            reader.wrong(value, f"{text!r} is not a label value", _VALUE_HINT)
        elif text is not None:
            found.append((key, text))
    return tuple(sorted(found)) if len(found) == len(labels) else None


def _amount(reader: Reader, entry: Entry, team: str) -> Share | None:
    text = reader.plain(entry, "amount")
    if text is None:
        return None
    text = text.strip()
    if _COUNT.fullmatch(text):
        return Share(team, int(text))
    percent = _PERCENT.fullmatch(text)
    if percent is None:
        negative = text.startswith("-") and text[1:2].isdigit()
        what = "is negative" if negative else "is not a whole number or a percentage"
        reader.wrong(entry, f"amount {text!r} {what}", "use 0 or more nodes, as in 40, or 0% to 100%, as in 25%")
        return None
    share = Fraction(percent[1]) / 100
    if share > 1:
        reader.wrong(entry, f"amount {text!r} is more than the whole pool", "use 100% at most")
        return None
    return Share(team, percent=share * 100)


def _check_pool(reader: Reader, members: list[_Tuple]) -> None:
    seen: dict[str, int] = {}
    total = Fraction(0)
    for each in members:
        team = each.share.team
        if team in seen:
            where = f"nodeSelector {_said(each.selector)}"
            reader.wrong(each.at, f"{where} and team {team} are those of line {seen[team]}", "make them one allocation")
            continue
        seen[team] = each.at.line
        before, total = total, total + (each.share.percent or 0)
        if before <= 100 < total:
            reader.wrong(
                each.at,
                f"with this entry the shares of nodeSelector {_said(each.selector)} add up to {_sum(members)}",
                "lower the amounts to 100% in total",
            )


def _sum(members: Iterable[_Tuple]) -> str:
    return f"{float(sum(each.share.percent or 0 for each in members)):g}%"


def _may_overlap(one: Selector, two: Selector) -> bool:
    """Return whether a node could match both selectors: no label has two required values."""
    first = dict(one)
    return not any(first.get(key, value) != value for key, value in two)


def _said(selector: Selector) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in selector) + "}"


def _key(reader: Reader, entry: Entry | None, default: str) -> str:
    if entry is None:
        return default
    text = reader.text(entry, "the key")
    if text is None:
        return default
    if not _LABEL.fullmatch(text):
        reader.wrong(entry, f"{text!r} is not a label key", "use NAME or DOMAIN/NAME, as in openai.com/team")
        return default
    return text
