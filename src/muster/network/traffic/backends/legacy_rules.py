"""The rules of legacy iptables that count traffic, as text for `iptables-legacy-restore --noflush`.

The rules are in the table mangle and have comments. POSTROUTING sees what leaves, FORWARD and INPUT what enters.
All three see the pod's address and the real peer. PREROUTING of this table does not: it comes before destination NAT,
where replies to masqueraded pods still have the node's address.

A packet passes few rules. Its peer selects the chain of a class, and the last four bits of the pod's address one of 16
chains there, which holds the rules of these pods. A chain that holds counters is declared once, because `:CHAIN`
flushes it.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from muster.api.socket_marks import BASE, MASK
from muster.network.traffic.backend import DIRECTIONS, HOST, INNER, IPV6, OUTER, TUNNEL, Direction
from muster.network.traffic.classes import INTERNET, Classes
from muster.network.traffic.interfaces import Interfaces

BUCKETS: Final = 16
FORWARDED, LOCAL, OUT = "MUSTER-FORWARDED", "MUSTER-LOCAL", "MUSTER-OUT"
MARKS, INSTANCE = "MUSTER-MARKS", "MUSTER-INSTANCE"
PREFIX: Final = "MUSTER-"
COMMENT: Final = "iptables-exporter muster-traffic"
"""Exporters that read legacy tables take rules whose comment begins so, and the labels after it."""

_ENVELOPES: Final = ("4", "41", "47", "50")  # IPIP, SIT, GRE, ESP
_SHORT: Final = {"in": "I", "out": "O"}
_ENTRIES: Final[tuple[tuple[str, str, str, Direction], ...]] = (
    ("FORWARD", "-i", FORWARDED, "in"),
    ("INPUT", "-i", LOCAL, "in"),  # apart from FORWARD, which must not lead to matches of control groups
    ("POSTROUTING", "-o", OUT, "out"),
)


class Family(NamedTuple):
    """One of the two programs: its prefix, the version of IP, bits of an address."""

    program: str
    version: int
    bits: int


FAMILIES: Final = (Family("iptables-legacy", 4, 32), Family("ip6tables-legacy", 6, 128))


def class_chain(direction: Direction, cls: str) -> str:
    """Return the chain of a class, whose rules select a bucket. Names of chains have at most 28 characters."""
    return f"{PREFIX}{_SHORT[direction]}-{hashlib.sha256(cls.encode()).hexdigest()[:10]}"


def bucket_chain(direction: Direction, cls: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Return the chain with the rules of pods whose addresses end with the same four bits."""
    return f"{class_chain(direction, cls)}-{int(address) % BUCKETS:x}"


def rest_chain(direction: Direction, cls: str) -> str:
    """Return the chain for packets of no pod: the rules of sockets."""
    return f"{class_chain(direction, cls)}-R"


def host_chain(direction: Direction, cls: str) -> str:
    """Return the chain that counts for the host."""
    return f"{class_chain(direction, cls)}-H"


def tunnel_chain(direction: Direction, cls: str) -> str:
    """Return the chain that counts packets for one of the classes INNER, OUTER and IPV6."""
    return f"{PREFIX}{_SHORT[direction]}-{cls.upper()}"


def comment(subject: str, cls: str, direction: Direction, group: int = 0) -> str:
    """Return the match that names what a rule counts.

    `group` distinguishes a control group from a later one of the same name.
    """
    numbered = f" group={group}" if group else ""
    return f'-m comment --comment "{COMMENT} subject={subject} class={cls} direction={direction}{numbered}"'


def declarations(classes: Classes, present: frozenset[str], instance: str) -> Iterator[str]:
    """Yield lines that create the chains with counters that are missing."""
    created: list[tuple[str, list[str]]] = [(INSTANCE, [f'-m comment --comment "{instance}"'])]
    for direction in DIRECTIONS:
        created += [(tunnel_chain(direction, cls), [comment(TUNNEL, cls, direction)]) for cls in (INNER, OUTER, IPV6)]
        for cls in classes.names:
            rest, host = rest_chain(direction, cls), host_chain(direction, cls)
            created += [(host, [comment(HOST, cls, direction)]), (rest, [f"-g {host}"])]
            last = host if direction == "in" else rest
            created += [(f"{class_chain(direction, cls)}-{bucket:x}", [f"-g {last}"]) for bucket in range(BUCKETS)]
    missing = [(chain, rules) for chain, rules in created if chain not in present]
    for chain, _ in missing:
        yield f":{chain} - [0:0]"
    for chain, rules in missing:
        for rule in rules:
            yield f"-A {chain} {rule}"


def dispatch(
    classes: Classes, interfaces: Interfaces, family: Family, former: Sequence[str], *, marks: bool
) -> Iterator[str]:
    """Yield lines that replace the chains without counters, and the jumps to them.

    Args:
        classes: of peers.
        interfaces: those that count.
        family: for which program.
        former: the jumps that are there, as `iptables-save` prints rules.
        marks: whether marks of sockets are subjects.
    """
    chains: dict[str, list[str]] = {MARKS: []}
    for _, _, entry, direction in _ENTRIES:
        target = rest_chain if entry == LOCAL else class_chain
        peer = "-s" if direction == "in" else "-d"
        chains[entry] = _envelopes(direction, interfaces) if interfaces.tunnels and entry != FORWARDED else []
        for each in classes.ranges(family.version):
            networks = each.networks(family.version)
            chains[entry] += [f"{peer} {network} -g {target(direction, each.cls)}" for network in networks]
        chains[entry].append(f"-g {target(direction, INTERNET)}")
    for direction in DIRECTIONS:
        pod = "-d" if direction == "in" else "-s"
        for cls in classes.names:
            chain = class_chain(direction, cls)
            chains[chain] = [
                f"{pod} {_low(bucket, family)}/{_low(BUCKETS - 1, family)} -g {chain}-{bucket:x}"
                for bucket in range(BUCKETS)
            ]
    if marks:
        chains[MARKS].append(
            f"-m mark --mark {BASE:#x}/{BASE:#x} -j CONNMARK --save-mark --nfmask {MASK:#x} --ctmask {MASK:#x}"
        )
    for chain in chains:
        yield f":{chain} - [0:0]"
    for chain, rules in chains.items():
        for rule in rules:
            yield f"-A {chain} {rule}"
    yield from (f"-D {rule}" for rule in former)
    yield from (f"-I {rule}" for rule in jumps(interfaces, family, marks=marks))


def jumps(interfaces: Interfaces, family: Family, *, marks: bool) -> list[str]:
    """Return the rules in the built-in chains, without the command."""
    rules = []
    for base, option, entry, direction in _ENTRIES:
        entries = [entry] if family.version == 4 else [entry, tunnel_chain(direction, IPV6)]
        links = interfaces.nics + interfaces.tunnels
        rules += [f"{base} {option} {link} -j {chain}" for chain in entries for link in links]
        rules += [f"{base} {option} {link} -j {tunnel_chain(direction, INNER)}" for link in interfaces.tunnels]
    if marks:
        rules.append(f"OUTPUT -j {MARKS}")
    return rules


def _envelopes(direction: Direction, interfaces: Interfaces) -> list[str]:
    chain = tunnel_chain(direction, OUTER)
    option, kind = ("-i", "--dst-type") if direction == "in" else ("-o", "--src-type")
    matches = [f"-p {number}" for number in _ENVELOPES]
    matches += [f"-p udp -m udp --dport {port}" for port in interfaces.tunnel_ports]
    return [
        f"{option} {link} {match} -m addrtype {kind} LOCAL -g {chain}" for link in interfaces.nics for match in matches
    ]


def _low(number: int, family: Family) -> str:
    return str(ipaddress.IPv4Address(number) if family.version == 4 else ipaddress.IPv6Address(number))
