"""Tracks which pending pods use which volume claims, and the node constraints of these claims."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from muster.kube.objects.pod import Pod
from muster.scheduler.gangs.gang import PodRecord
from muster.scheduler.pods.volumes import ClaimNeeds, ClaimState, claim_names, judge
from muster.scheduler.reasons import Reason, Why


class Claims:
    """Known claims by `namespace/name`, and the pending pods that use them."""

    def __init__(self) -> None:
        self.known: dict[str, ClaimState] = {}
        self.unmade: set[str] = set()
        """Claims whose volume is provisioned when a pod that uses it has a node."""
        self._pods: dict[str, dict[str, Pod]] = defaultdict(dict)

    def judge(self, record: PodRecord, pod: Pod) -> tuple[Reason | None, ClaimNeeds]:
        """Return why the pod's claims block placement, else the node constraints that they add."""
        record.claims = claim_names(pod)
        for name in record.claims:
            self._pods[f"{record.namespace}/{name}"][record.uid] = pod
        verdict = judge(record.claims, self.known, record.namespace)
        if verdict.refusal:
            return Reason(Why.NOT_SUPPORTED, detail=f"pod {record.name}: {verdict.refusal}"), ()
        if verdict.waiting:
            return Reason(Why.WAITING_FOR_VOLUME, detail=verdict.waiting), ()
        return None, verdict.needs

    def forget(self, record: PodRecord) -> None:
        """Forget a deleted pod."""
        for name in record.claims:
            key = f"{record.namespace}/{name}"
            self._pods[key].pop(record.uid, None)
            if not self._pods[key]:
                del self._pods[key]
                self.known.pop(key, None)
                self.unmade.discard(key)

    def learn(self, key: str, claim: ClaimState) -> list[tuple[str, Pod]]:
        """Record a claim that was read; return the (UID, pod) to judge again, none if it did not change."""
        if self.known.get(key) == claim:
            return []
        self.known[key] = claim
        (self.unmade.add if claim.waits_for_first_consumer else self.unmade.discard)(key)
        return list(self._pods[key].items())

    def users_of_unmade(self) -> set[str]:
        """Return the UIDs of pods that use a claim without a provisioned volume."""
        return {uid for key in self.unmade for uid in self._pods[key]}

    def wanted(self, pods: Mapping[str, PodRecord]) -> Iterator[str]:
        """Yield the claims of pending pods that are not known to be bound."""
        for key, users in self._pods.items():
            claim = self.known.get(key)
            bound = claim is not None and claim.bound
            if not bound and any(uid in pods and not pods[uid].node for uid in users):
                yield key
