"""The limits of all pods of a node: queues on their links, or policed cgroups where that is not possible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from muster.network.localpods.pod import LocalPod, LocalPods
from muster.network.shaping.shaper import PodUse, Shaper
from muster.network.uplink.wire import Pair


class Policer(Protocol):
    """Drops packets of cgroups above a rate: `policing.Policer`."""

    def apply(self, limits: Mapping[str, Pair | None], folders: Mapping[str, tuple[str, ...]]) -> None:
        """Police subjects, and release all others. None: only count. Raises OSError."""

    def can_police(self, folders: Iterable[str]) -> bool:
        """Return whether one of the cgroups is of a kind that can be policed."""

    def measure(self) -> dict[str, PodUse]:
        """Return the counters of all subjects. Raises OSError."""

    def teardown(self) -> None:
        """Release all cgroups. Raises OSError."""


class NodeLimiter:
    """Decides which pods are shaped and which are policed.

    A pod is policed if it is in the host's network, or if its link has no queues: the link is refused or of another
    kind. If the link is not known, queues limit the pod as far as its packets pass one.

    Args:
        shaper: of this node.
        policer: of this node; None: pods without a link of their own are not limited.
        pods: finds links and cgroups.
    """

    def __init__(self, shaper: Shaper, policer: Policer | None, pods: LocalPods) -> None:
        self._shaper, self._policer, self._pods = shaper, policer, pods
        self._set_up = False
        self._unlimited: tuple[str, ...] = ()
        self._policed: tuple[str, ...] = ()
        self._unknown: tuple[str, ...] = ()

    def setup(self, start: Pair) -> None:
        """Create or adopt what is in the kernel. Raises OSError."""
        self._shaper.setup(start)
        self._set_up = True

    def refresh(self, *, only_new: bool) -> None:
        """Find links of pods. Raises OSError."""
        self._shaper.refresh(only_new=only_new)

    def apply(self, limits: Mapping[str, Pair | None], rest: Pair, pods: Mapping[str, LocalPod]) -> Pair:
        """Set all limits; return their sum. Raises OSError."""
        links = {uid: self._pods.host_interface(pod) for uid, pod in pods.items() if not pod.host_network}
        policed = {
            uid: self._pods.cgroups(pod)
            for uid, pod in pods.items()
            if pod.host_network or (links[uid] and links[uid] not in self._shaper.attached)
        }
        self._unknown = tuple(sorted(uid for uid, link in links.items() if not link))
        police = self._policer
        found = {uid: each for uid, each in policed.items() if police is not None and police.can_police(each)}
        self._unlimited = tuple(sorted(policed.keys() - found.keys()))
        self._policed = tuple(sorted(found))
        sharing = sum(limits[uid] is None for uid in found)
        part = Pair(*(each // (sharing + 1) for each in rest))
        rest = Pair(*(each - sharing * less for each, less in zip(rest, part, strict=True)))
        total = self._shaper.apply(
            {uid: limit for uid, limit in limits.items() if uid not in policed},
            rest,
            {uid: pod.addresses for uid, pod in pods.items()},
        )
        if police is not None:
            rates = {uid: limits[uid] or part for uid in found}
            police.apply(rates, found)
            total = Pair(*(sum(each) for each in zip(total, *rates.values(), strict=True)))
        return total

    def count(self, pods: Mapping[str, LocalPod]) -> None:
        """Only count the packets of the pods. Raises OSError."""
        if self._policer is not None:
            folders = {uid: self._pods.cgroups(pod) for uid, pod in pods.items()}
            self._policer.apply(dict.fromkeys(folders), folders)

    def measure(self) -> dict[str, PodUse]:
        """Return the counters of all subjects. Raises OSError."""
        use = self._shaper.measure() if self._set_up else {}
        if self._policer is not None:
            use.update(self._policer.measure())
        return use

    def teardown(self) -> None:
        """Remove all limits from the kernel. Raises OSError."""
        self._set_up = False
        if self._policer is not None:
            self._policer.teardown()
        self._shaper.teardown()

    def state(self) -> dict[str, Any]:
        """Return what people should know, for the agent's page."""
        return {
            "links": sorted(self._shaper.attached),
            "refusedLinks": dict(self._shaper.refused),
            "policed": self._policed,
            "unlimited": self._unlimited,
            "unknownLink": self._unknown,
        }
