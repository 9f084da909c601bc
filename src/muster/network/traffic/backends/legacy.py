"""Counts traffic by rules of legacy iptables, on hosts whose own rules are there."""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Final, NamedTuple

from muster.api.socket_marks import MASK
from muster.network.traffic.backend import (
    DIRECTIONS,
    HOST,
    TUNNEL,
    BackendError,
    Count,
    CounterKey,
    CountersGone,
    Subject,
)
from muster.network.traffic.backends import legacy_rules as rules
from muster.network.traffic.backends.legacy_rules import FAMILIES, Family
from muster.network.traffic.backends.program import run_program
from muster.network.traffic.classes import Classes
from muster.network.traffic.interfaces import Interfaces
from muster.network.traffic.subjects import addresses, checked, group_id, group_level

_WAIT_S: Final = 10
_IPV6: Final = Path("/proc/sys/net/ipv6")
"""Missing where the kernel was started without IPv6; its program then fails."""
_NEVER: Final = "-p 255"  # a reserved number
_ENDING: Final = '-m comment --comment "muster-traffic ending"'
_LINE: Final = re.compile(r"\[(\d+):(\d+)\] -A (\S+) (.*)")
_COUNTED: Final = re.compile(
    rf'--comment "{rules.COMMENT} subject=(\S+) class=(\S+) direction=(in|out)(?: group=(\d+))?"'
)
_ADDRESS: Final = re.compile(r"-[sd] (\S+)/(?:32|128) ")
_MARK: Final = re.compile(r"-m (?:conn)?mark --mark (0x[0-9a-f]+)/")
_GROUP: Final = re.compile(r'-m cgroup --path "?([^" ]+)"? ')
_NUMBER: Final = re.compile(r'-m comment --comment "?([0-9a-f-]{36})"?')


class _Part(NamedTuple):
    """What packets of a subject are recognized by: an address, a mark, or the path and number of a control group."""

    address: str = ""
    mark: int = 0
    path: str = ""
    group: int = 0


class _Rule(NamedTuple):
    """A rule that counts. `text` is what follows the chain, as `iptables-save` prints it."""

    chain: str
    text: str
    key: CounterKey
    part: _Part
    value: Count


class _Table(NamedTuple):
    """What is ours in the table mangle of one family."""

    chains: frozenset[str]
    filled: frozenset[str]
    rules: list[_Rule]
    ending: list[str]
    jumps: list[str]
    instance: str


_Tables = Mapping[Family, _Table]


class LegacyBackend:
    """Counts in the tables mangle of IPv4 and IPv6.

    Limits: control groups of sockets are known only where the unified hierarchy is mounted, and what unconnected
        sockets
    of UDP receive is the host's. While a rule names a control group that is gone, the kernel refuses all changes of
    the
    table: call `put` soon after a host-network pod ended.

    Args:
        interfaces: the links that count.
        cgroup_root: the root of the unified hierarchy, as this process sees it.
    """

    def __init__(self, interfaces: Interfaces, *, cgroup_root: Path = Path("/sys/fs/cgroup")) -> None:
        self._interfaces = interfaces
        self._cgroup_root = cgroup_root
        self._classes: Classes | None = None
        self._marks = False

    @property
    def name(self) -> str:
        """See Backend."""
        return "iptables-legacy"

    def setup(self, classes: Classes) -> None:
        """See Backend."""
        self._classes = classes
        tables = _tables()
        wanted = _owners(tables)
        self._marks = any(part.mark for part in wanted)
        for family, table in tables.items():
            lines = [*rules.declarations(classes, table.filled, str(uuid.uuid4()))]
            lines += [f"-D {rule}" for rule in table.ending]
            for rule in table.rules:
                if rule.part.path and self._is_still(rule):
                    lines.append(f"-D {rule.chain} {rule.text}")
                    lines.append(f"[{rule.value.packets}:{rule.value.bytes}] -A {rule.chain} {_kept(rule)}")
            present = {(rule.chain, rule.text) for rule in table.rules}
            lines += [f"-I {chain} {text}" for chain, text in _wanted(wanted, classes, family, present)]
            lines += rules.dispatch(classes, self._interfaces, family, table.jumps, marks=self._marks)
            _restore(family, lines)

    def instance(self) -> str:
        """See Backend."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return "/".join((boot, *(self._complete(*each).instance for each in _tables().items())))

    def put(self, subjects: Sequence[Subject]) -> Mapping[CounterKey, Count]:
        """See Backend."""
        wanted = self._parts(checked(subjects))
        tables = _tables()
        for family, table in tables.items():
            self._complete(family, table)
        return self._change(tables, wanted)

    def read(self) -> Mapping[CounterKey, Count]:
        """See Backend."""
        return _sums(rule for family, table in _tables().items() for rule in self._complete(family, table).rules)

    def remove(self, ids: Sequence[str]) -> Mapping[CounterKey, Count]:
        """See Backend."""
        gone = frozenset(ids)
        tables = _tables()
        for family, table in tables.items():
            self._complete(family, table)
        return self._change(tables, {part: owner for part, owner in _owners(tables).items() if owner not in gone})

    def teardown(self) -> None:
        """See Backend."""
        for family, table in _tables().items():
            lines = [f"-D {rule}" for rule in table.jumps]
            lines += [f"-F {chain}" for chain in sorted(table.chains)]
            lines += [f"-X {chain}" for chain in sorted(table.chains)]
            _restore(family, lines)

    def _in_use(self) -> Classes:
        if self._classes is None:
            raise BackendError("the counters are not set up: call setup first")
        return self._classes

    def _complete(self, family: Family, table: _Table) -> _Table:
        """Return the table. Raises CountersGone if packets do not pass all of our rules any more."""
        if not table.instance:
            raise CountersGone("another program removed the rules MUSTER- from the table mangle")
        if missing := set(rules.jumps(self._interfaces, family, marks=self._marks)) - set(table.jumps):
            raise CountersGone(f"another program removed the rule {min(missing)} from the table mangle")
        return table

    def _change(self, tables: _Tables, wanted: Mapping[_Part, str]) -> dict[CounterKey, Count]:
        """Count these parts and no others, by one restore per family; return the values of the rules that end.

        If rules end, another restore comes first: it leads their packets to the host, so that the values are final
        when they are read. A subject that loses a part ends in all rules, and begins again with what it keeps.
        """
        classes = self._in_use()
        ended = {
            rule.key.subject
            for table in tables.values()
            for rule in table.rules
            if _is_subject(rule) and wanted.get(rule.part) != rule.key.subject
        }
        marks = any(part.mark for part in wanted)
        final: list[_Rule] = []
        if ended:
            for family, table in tables.items():
                ending = [rule for rule in table.rules if rule.key.subject in ended]
                still = [rule for rule in ending if self._is_still(rule)]
                final += still
                lines = [f"-D {rule.chain} {rule.text}" for rule in still]
                lines += [f"-I {_freezing(rule)}" for rule in ending if rule not in still]
                _restore(family, lines)
            tables = _tables()
        for family, table in tables.items():
            ending = [rule for rule in table.rules if rule.key.subject in ended]
            final += ending
            lines = [f"-D {rule}" for rule in table.ending]
            lines += [f"-D {rule.chain} {rule.text}" for rule in ending]
            present = {(rule.chain, rule.text) for rule in table.rules if rule.key.subject not in ended}
            lines += [f"-I {chain} {text}" for chain, text in _wanted(wanted, classes, family, present)]
            if marks != self._marks:
                lines += rules.dispatch(classes, self._interfaces, family, table.jumps, marks=marks)
            _restore(family, lines)
        self._marks = marks
        return _sums(final)

    def _is_still(self, rule: _Rule) -> bool:
        """Return whether no packet can match any more: its group is gone, or it was kept for its value only.

        The kernel refuses a table with the path of a group that is gone.
        """
        part = rule.part
        return not part.address and not part.mark and group_id(self._cgroup_root / part.path) != part.group

    def _parts(self, subjects: Sequence[Subject]) -> dict[_Part, str]:
        parts: dict[_Part, str] = {}
        for subject in subjects:
            for address in addresses(subject):
                parts[_Part(address=str(address))] = subject.id
            if subject.mark:
                parts[_Part(mark=subject.mark)] = subject.id
            if subject.cgroup and not subject.addresses:
                folder = Path(subject.cgroup)
                group_level(folder, self._cgroup_root)
                if number := group_id(folder):
                    parts[_Part(path=str(folder.relative_to(self._cgroup_root)), group=number)] = subject.id
        return parts


def _wanted(
    wanted: Mapping[_Part, str], classes: Classes, family: Family, present: Set[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield (chain, rule) of each rule that these parts need in one family and that is not present."""
    for part, owner in wanted.items():
        address = ipaddress.ip_address(part.address) if part.address else None
        if address is not None and address.version != family.version:
            continue
        for direction in DIRECTIONS:
            if address is not None:
                match = f"{'-d' if direction == 'in' else '-s'} {address}/{family.bits}"
            elif part.mark:
                match = f"-m {'connmark' if direction == 'in' else 'mark'} --mark {part.mark:#x}/{MASK:#x}"
            else:
                match = f'-m cgroup --path "{part.path}"'
            for cls in classes.names:
                chain = (
                    rules.rest_chain(direction, cls) if address is None else rules.bucket_chain(direction, cls, address)
                )
                rule = (chain, f"{match} {rules.comment(owner, cls, direction, part.group)} -j RETURN")
                if rule not in present:
                    yield rule


def _freezing(rule: _Rule) -> str:
    """Return the rule that leads packets past this one, to the host."""
    match = rule.text.partition(" -m comment ")[0]
    target = rules.rest_chain if rule.part.address else rules.host_chain
    return f"{rule.chain} {match} {_ENDING} -g {target(rule.key.direction, rule.key.cls)}"


def _kept(rule: _Rule) -> str:
    """Return a rule that no packet matches, with the comment of this one: it keeps the value until the subject ends."""
    _, match, rest = rule.text.partition(" -m comment ")
    return f"{_NEVER}{match}{rest}"


def _is_subject(rule: _Rule) -> bool:
    return rule.key.subject not in (HOST, TUNNEL)


def _owners(tables: _Tables) -> dict[_Part, str]:
    every = (rule for table in tables.values() for rule in table.rules)
    return {rule.part: rule.key.subject for rule in every if _is_subject(rule) and rule.part != _Part()}


def _sums(counted: Iterable[_Rule]) -> dict[CounterKey, Count]:
    counts: dict[CounterKey, Count] = {}
    for rule in counted:
        before = counts.get(rule.key)
        counts[rule.key] = rule.value if before is None else before.plus(rule.value)
    return counts


def _tables() -> dict[Family, _Table]:
    families = FAMILIES if _IPV6.is_dir() else FAMILIES[:1]
    return {family: _table(run_program((f"{family.program}-save", "-c", "-t", "mangle"))) for family in families}


def _table(saved: str) -> _Table:
    chains: set[str] = set()
    filled: set[str] = set()
    counted: list[_Rule] = []
    ending: list[str] = []
    jumps: list[str] = []
    instance = ""
    for line in saved.splitlines():
        if line.startswith(f":{rules.PREFIX}"):
            chains.add(line[1:].partition(" ")[0])
        matched = _LINE.fullmatch(line)
        if matched is None:
            continue
        packets, size, chain, text = matched.groups()
        filled.add(chain)
        if found := _COUNTED.search(text):
            subject, cls, direction, group = found.groups()
            key = CounterKey(subject, cls, "in" if direction == "in" else "out")
            counted.append(_Rule(chain, text, key, _part(text, group), Count(int(packets), int(size))))
        elif _ENDING in text:
            ending.append(f"{chain} {text}")
        elif chain == rules.INSTANCE and (number := _NUMBER.fullmatch(text)):
            instance = number[1]
        elif f" -j {rules.PREFIX}" in text or text.startswith(f"-j {rules.PREFIX}"):
            jumps.append(f"{chain} {text}")
    return _Table(frozenset(chains), frozenset(filled), counted, ending, jumps, instance)


def _part(text: str, group: str | None) -> _Part:
    if address := _ADDRESS.match(text):
        return _Part(address=address[1])
    if mark := _MARK.match(text):
        return _Part(mark=int(mark[1], 16))
    if path := _GROUP.match(text):
        return _Part(path=path[1], group=int(group or 0))
    return _Part()


def _restore(family: Family, lines: Sequence[str]) -> None:
    if lines:
        text = "\n".join(("*mangle", *lines, "COMMIT", ""))
        run_program((f"{family.program}-restore", "--noflush", "--counters", f"--wait={_WAIT_S}"), text)
