"""DaemonSets and their service accounts: clients whose number grows with the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from muster.api.finding import Culprit, Growth
from muster.doctor.evidence import Evidence
from muster.doctor.parts.requests import Sampled, Use
from muster.doctor.rule import Context

_ACCOUNT: Final = "system:serviceaccount:"
_NODE: Final = "system:node:"
_SHOWN: Final = 5
"""Most culprits that a finding names."""


class DaemonSet(msgspec.Struct, frozen=True):
    """A DaemonSet.

    Attributes:
        key: namespace/name.
        account: its service account, as namespace/name.
        pods: nodes on which it should run.
    """

    key: str
    account: str
    pods: int


class DaemonSets(msgspec.Struct, frozen=True):
    """The DaemonSets that could be read."""

    items: tuple[DaemonSet, ...] = ()

    def of_account(self, account: str) -> DaemonSet | None:
        """Return the DaemonSet that uses a service account; None if there is none, or more than one."""
        found = [each for each in self.items if each.account == account]
        return found[0] if len(found) == 1 else None


async def collect_daemonsets(context: Context) -> DaemonSets | None:
    """Read the DaemonSets."""
    listed = await context.reader.list("/apis/apps/v1/daemonsets", what="which DaemonSet a service account belongs to")
    return DaemonSets(tuple(map(daemonset_of, listed.items))) if listed is not None else None


def daemonset_of(item: Mapping[str, Any]) -> DaemonSet:
    """Return the facts of a DaemonSet object."""
    meta, pod = item["metadata"], item["spec"]["template"]["spec"]
    account = pod.get("serviceAccountName") or "default"
    pods = int((item.get("status") or {}).get("desiredNumberScheduled") or 0)
    return DaemonSet(f"{meta['namespace']}/{meta['name']}", f"{meta['namespace']}/{account}", pods)


def culprit_of(user: str, daemonsets: DaemonSets, share: float | None = None) -> Culprit:
    """Return the culprit behind a user name: a DaemonSet, a service account, all nodes, or the user."""
    if user.startswith(_NODE):
        return Culprit("Group", "system:nodes", share)
    if user.startswith(_ACCOUNT):
        account = user.removeprefix(_ACCOUNT).replace(":", "/", 1)
        daemonset = daemonsets.of_account(account)
        return Culprit("DaemonSet", daemonset.key, share) if daemonset else Culprit("ServiceAccount", account, share)
    return Culprit("User", user, share)


def busiest(evidence: Evidence, keep: Callable[[Use], bool]) -> tuple[Culprit, ...]:
    """Return the culprits behind the sampled requests that `keep` chooses, with shares, the busiest one first."""
    sampled = evidence.part(Sampled)
    if sampled is None:
        return ()
    daemonsets = evidence.part(DaemonSets) or DaemonSets()
    shares: dict[tuple[str, str], float] = {}
    for user, share in sampled.shares(keep):
        who = culprit_of(user, daemonsets)
        shares[who.kind, who.name] = shares.get((who.kind, who.name), 0.0) + share
    ranked = sorted(shares.items(), key=lambda entry: -entry[1])
    return tuple(Culprit(kind, name, share) for (kind, name), share in ranked[:_SHOWN] if share >= 0.05)


def clients_growth(culprits: Iterable[Culprit]) -> Growth:
    """Return how the requests of the main culprit grow: with the nodes, if it has a client on each node."""
    first = next(iter(culprits), None)
    per_node = first is not None and (first.kind == "DaemonSet" or first.name == "system:nodes")
    return Growth.PER_NODE if per_node else Growth.CONSTANT
