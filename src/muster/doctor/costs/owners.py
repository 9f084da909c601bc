"""Finds the workload behind a request: its service account, and the DaemonSet or other owner of its pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from muster.kube.objects.meta import OwnerReference
from muster.kube.requestlog import RequestLine

SERVICE_ACCOUNT: Final = "system:serviceaccount:"
NODE_USER: Final = "system:node:"
_CONTROL_PLANE: Final = frozenset({"system:apiserver", "system:kube-controller-manager", "system:kube-scheduler"})


class Caller(NamedTuple):
    """A workload, or the account of requests whose workload is unknown.

    Attributes:
        kind: kind of the owner of the pods, such as `DaemonSet`; `Pod`; `ServiceAccount` if the pods are unknown or
            several owners share the account; `Kubelet`; `User`.
        namespace, name: of that object; of a user, the user name.
        account: service account as `NAMESPACE/NAME`, "" for users.
        system: belongs to the control plane or is a kubelet.
    """

    kind: str
    namespace: str
    name: str
    account: str = ""
    system: bool = False

    @property
    def words(self) -> str:
        """`DaemonSet monitoring/telemetry`."""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


KUBELETS: Final = Caller("Kubelet", "", "on every node", system=True)


class PodFacts(NamedTuple):
    """What the mapping needs of a pod."""

    namespace: str
    name: str
    account: str
    node: str
    owner: OwnerReference | None
    address: str = ""
    """The pod's own address, "" if it uses the node's."""


class Workload(NamedTuple):
    """A workload and the service account of its pods, `NAMESPACE/NAME`."""

    kind: str
    namespace: str
    name: str
    account: str


class Found(NamedTuple):
    """The caller of a request, and which of its instances sent it: a pod or node, "" if unknown."""

    caller: Caller
    instance: str
    node: str


class Owners:
    """Maps requests to workloads by the pods that exist now. Its memory is bounded by the number of pods."""

    def __init__(
        self,
        pods: Iterable[PodFacts] = (),
        owners: Mapping[str, OwnerReference] | None = None,
        workloads: Iterable[Workload] = (),
    ) -> None:
        """Index the pods.

        Args:
            pods: pods of the cluster, possibly only some.
            owners: controller of a ReplicaSet or Job by its UID, so that a Deployment or CronJob is named.
            workloads: name the owner of an account if its pods are not among `pods`.
        """
        self._above = owners or {}
        self._by_pod: dict[tuple[str, str], tuple[Caller, str]] = {}
        self._by_node: dict[tuple[str, str], set[tuple[Caller, str]]] = {}
        self._by_account: dict[str, set[Caller]] = {}
        self._by_address: dict[str, tuple[str, str]] = {}
        self._by_agent: dict[tuple[str, str], set[Caller]] = {}
        for pod in pods:
            account = f"{pod.namespace}/{pod.account}"
            caller = self._caller(pod, account)
            self._by_pod[(pod.namespace, pod.name)] = (caller, pod.node)
            self._by_account.setdefault(account, set()).add(caller)
            if pod.node:
                self._by_node.setdefault((account, pod.node), set()).add((caller, pod.name))
            if pod.address:
                self._by_address[pod.address] = (pod.namespace, pod.name)

        for workload in workloads:
            caller = Caller(workload.kind, workload.namespace, workload.name, workload.account)
            self._by_account.setdefault(workload.account, set()).add(caller)

    def find(self, line: RequestLine) -> Found:
        """Find the caller of a request."""
        if line.user.startswith(NODE_USER):
            node = line.user.removeprefix(NODE_USER)
            return Found(KUBELETS, node, node)
        namespace, _, name = line.user.removeprefix(SERVICE_ACCOUNT).partition(":")
        if not line.user.startswith(SERVICE_ACCOUNT) or not name:
            system = line.user in _CONTROL_PLANE
            return Found(Caller("User", "", line.user or "unknown", system=system), line.pod or line.peer, line.node)
        return self._of_account(line, namespace, f"{namespace}/{name}", name)

    def _of_account(self, line: RequestLine, namespace: str, account: str, name: str) -> Found:
        pod = line.pod
        if not pod and line.peer:
            at = self._by_address.get(line.peer)
            pod = at[1] if at is not None and at[0] == namespace else ""
        known = self._by_pod.get((namespace, pod)) if pod else None
        if known is not None and known[0].account == account:
            caller, node = known
            self._learn(account, line.user_agent, caller)
            return Found(caller, pod, line.node or node)
        here = self._by_node.get((account, line.node), set()) if line.node else set()
        if len(here) == 1:
            caller, now = next(iter(here))
            return Found(caller, pod or now, line.node)
        owners = self._by_account.get(account, set())
        if len(owners) != 1:
            owners = self._by_agent.get((account, line.user_agent), set()) if line.user_agent else set()
        instance = pod or line.node or line.peer
        if len(owners) == 1:
            return Found(next(iter(owners)), instance, line.node)
        system = namespace == "kube-system" and account not in self._by_account and not pod
        return Found(Caller("ServiceAccount", namespace, name, account, system), instance, line.node)

    def _learn(self, account: str, agent: str, caller: Caller) -> None:
        if agent and len(self._by_account.get(account, ())) > 1:
            agents = self._by_agent.setdefault((account, agent), set())
            agents.add(caller)
            if len(self._by_agent) > 10_000:
                self._by_agent.pop(next(iter(self._by_agent)))

    def _caller(self, pod: PodFacts, account: str) -> Caller:
        owner = pod.owner
        above = self._above.get(owner.uid) if owner is not None else None
        owner = above or owner
        if owner is None:
            return Caller("Pod", pod.namespace, pod.name, account)
        return Caller(owner.kind, pod.namespace, owner.name, account)
