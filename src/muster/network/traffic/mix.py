"""Which firewall the node uses: legacy iptables, nftables, or a mix of both that no program sees as a whole.

`iptables` exists twice: one writes the legacy tables, one writes nftables. Packets pass both, but each program shows
and changes its own rules only. Which one a container has depends on its image, and on what it found when it started
(kubernetes/kubernetes#71305, aws/amazon-vpc-cni-k8s#3559).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.network.netlink.nft import Rule, list_rules
from muster.network.traffic.backend import BackendError
from muster.network.traffic.backends.program import run_program

LEGACY, NFTABLES = "iptables-legacy", "nftables"

_NAMES: Final = (("ip", "iptables-legacy", "ip_tables_names"), ("ip6", "ip6tables-legacy", "ip6_tables_names"))
_OURS: Final = ("MUSTER-", "muster")
_OWNERS: Final = (
    ("KUBE-", "Kubernetes"),
    ("kube-proxy", "Kubernetes"),
    ("cali-", "Calico"),
    ("CILIUM_", "Cilium"),
    ("FLANNEL", "Flannel"),
    ("AWS-", "AWS CNI"),
    ("CNI-", "CNI plugins"),
    ("DOCKER", "Docker"),
    ("firewalld", "firewalld"),
    ("ufw", "ufw"),
)
_KUBERNETES: Final = "Kubernetes"


@dataclass(frozen=True)
class Table:
    """Rules of one table that are not Muster's.

    Attributes:
        name: with its family, e.g. `ip filter`.
        rules: how many.
        owners: programs whose names of chains are in it, sorted.
    """

    name: str
    rules: int
    owners: tuple[str, ...] = ()


@dataclass(frozen=True)
class Firewalls:
    """The tables with rules, of both kinds.

    Attributes:
        legacy: those of legacy iptables.
        nftables: those of nftables, also by the program `iptables-nft`.
        unread: legacy tables that exist, but cannot be read because the program is missing.
    """

    legacy: tuple[Table, ...] = ()
    nftables: tuple[Table, ...] = ()
    unread: tuple[str, ...] = ()

    def mixed(self) -> bool:
        """Return whether both kinds have rules."""
        return bool(self.legacy and self.nftables)

    def uses(self) -> str:
        """Return LEGACY or NFTABLES: where Kubernetes' rules are, else where any are. Without rules it is NFTABLES.

        To count by nftables never disturbs a node. To create a legacy table would make a mix.
        """
        for has in (_kubernetes, len):
            legacy, nftables = has(self.legacy), has(self.nftables)
            if legacy != nftables:
                return LEGACY if legacy > nftables else NFTABLES
        return NFTABLES


def look(proc_root: Path = Path("/proc")) -> Firewalls:
    """Return the firewalls of this network namespace. No legacy table is created by looking.

    Raises:
        NetlinkError: the kernel refused to list rules of nftables.
    """
    legacy: list[Table] = []
    unread: list[str] = []
    for family, program, names in _NAMES:
        try:
            existing = (proc_root / "thread-self/net" / names).read_text().split()
        except OSError:
            continue  # the kernel has no legacy tables
        for name in sorted(existing):
            try:
                saved = run_program((f"{program}-save", "-t", name))
            except BackendError:
                unread.append(f"{family} {name}")
                continue
            lines = (line for line in saved.splitlines() if line.startswith("-A ") and f" -j {_OURS[0]}" not in line)
            rules = (line.split()[1] for line in lines)
            legacy.extend(_tables(Rule(family, name, chain) for chain in rules))
    return Firewalls(tuple(legacy), tuple(_tables(list_rules())), tuple(unread))


def _kubernetes(tables: tuple[Table, ...]) -> int:
    return sum(table.rules for table in tables if _KUBERNETES in table.owners)


def _tables(rules: Iterable[Rule]) -> list[Table]:
    counts: Counter[str] = Counter()
    owners: dict[str, set[str]] = {}
    for family, table, chain in rules:
        if table.startswith(_OURS) or chain.startswith(_OURS):
            continue
        name = f"{family} {table}"
        counts[name] += 1
        owners.setdefault(name, set()).update(
            owner for prefix, owner in _OWNERS if chain.startswith(prefix) or table.startswith(prefix)
        )
    return [Table(name, count, tuple(sorted(owners[name]))) for name, count in sorted(counts.items())]
