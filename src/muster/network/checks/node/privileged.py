"""What only a process with CAP_NET_ADMIN sees of a node's network: the rules of its firewalls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from muster.api.finding import Fix, Measure, Severity
from muster.network.checks.problem import Kind, Problem
from muster.network.traffic.mix import LEGACY, Firewalls, Table, look

CHECK: Final = "firewall"
KINDS: Final = {
    (CHECK, "mix"): Kind(
        Severity.WARNING,
        "Legacy iptables and nftables both have rules, and a program that uses one does not see the other",
        Fix(
            "Let all programs use one of them: the one that kube-proxy uses. Images with iptables-wrappers choose it "
            "when they start. Then restart the node, because the rules of the other one stay.",
            ("iptables-legacy-save", "nft list ruleset"),
        ),
    ),
}


def find_mix(firewalls: Firewalls) -> Iterator[Problem]:
    """Yield the problem of a mix. Pure."""
    if not firewalls.mixed():
        return
    stray = firewalls.nftables if firewalls.uses() == LEGACY else firewalls.legacy
    owners = sorted({owner for table in stray for owner in table.owners})
    whose = f" of {', '.join(owners)}" if owners else ""
    legacy, nftables = _rules(firewalls.legacy), _rules(firewalls.nftables)
    yield Problem(
        CHECK,
        "mix",
        "",
        f"{legacy} legacy rules and {nftables} of nftables; the node uses {firewalls.uses()}, "
        f"and {_rules(stray)} rules{whose} are elsewhere",
        (
            Measure("rules of legacy iptables", legacy, "", "iptables-legacy-save"),
            Measure("rules of nftables", nftables, "", "nftables"),
        ),
    )


def examine_privileged(proc: Path) -> list[Problem]:
    """Return the problems that need privileges.

    Raises:
        OSError: the kernel did not list the rules.
    """
    return list(find_mix(look(proc)))


def _rules(tables: Sequence[Table]) -> int:
    return sum(table.rules for table in tables)
