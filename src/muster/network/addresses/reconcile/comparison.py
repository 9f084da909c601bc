"""Decides which addresses are leaked. Pure.

Runtimes hardly call CNI's GC (containerd/go-cni#131), and a sandbox whose teardown failed is forgotten
(containerd#5768). So an address can be held for an attachment that does not exist. But each view alone can be wrong: a
runtime that was just started lists nothing, and a garbage collector that believed one view took addresses of running
pods (projectcalico/calico#5044, amazon-vpc-cni-k8s#3824). So an address is freed only if

- the runtime does not list the sandbox, and
- the kernel does not have the interface, or the node was rebooted since, and
- ADD and DEL are not under way, and
- a second comparison, at least CONFIRM_S later, sees the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from muster.network.addresses.attachment import Assigned, AttachmentKey, State
from muster.network.addresses.reconcile.plan import Finding, Plan, Problem
from muster.network.addresses.reconcile.snapshot import KernelView, Sandbox, Snapshot

YOUNG_S: Final = 600.0
"""The runtime may not list the sandbox of a younger attachment yet. The kubelet waits 4 minutes for it."""
CONFIRM_S: Final = 60.0


def compare(snapshot: Snapshot, suspects: Mapping[AttachmentKey, float]) -> Plan:
    """Return what differs and what to free.

    Args:
        snapshot: the views.
        suspects: of the plan before.
    """
    kernel, runtime = snapshot.kernel, _believed(snapshot)
    findings = [
        Finding(problem=Problem.BLOCK, addresses=(cidr,) if cidr else (), message=message)
        for cidr, message in sorted(snapshot.provider.items())
    ]
    blind = tuple(name for name, view in (("kernel", kernel), ("runtime", runtime)) if view is None)
    if kernel is None or runtime is None:
        hold = _held(snapshot, kernel) if kernel is not None else frozenset()
        return Plan(hold=hold, findings=tuple(findings), suspects=dict(suspects), blind=blind)
    leaked = [each for each in snapshot.attachments if _is_leaked(each, snapshot, kernel, runtime)]
    since = {each.key: suspects.get(each.key, snapshot.now_s) for each in leaked}
    findings += (_leak(each, snapshot.now_s - since[each.key]) for each in leaked)
    findings += _others(snapshot, kernel, runtime)
    return Plan(
        free=tuple(each for each in leaked if snapshot.now_s - since[each.key] >= CONFIRM_S),
        hold=_held(snapshot, kernel),
        findings=tuple(findings),
        suspects=since,
    )


def _believed(snapshot: Snapshot) -> Mapping[str, Sandbox] | None:
    """The runtime's view; None if it lists nothing although interfaces exist.

    Then it is another runtime than the one that called ADD, or it has just started.
    """
    kernel = snapshot.kernel
    if snapshot.runtime or kernel is None:
        return snapshot.runtime
    return None if kernel.interfaces else snapshot.runtime


def _is_leaked(each: Assigned, snapshot: Snapshot, kernel: KernelView, runtime: Mapping[str, Sandbox]) -> bool:
    if each.key.container_id in runtime or each.key in kernel.interfaces:
        return False
    if each.boot_id != snapshot.boot_id:
        return True
    return _kernel_would_show(each) and snapshot.now_s - each.since_s >= YOUNG_S


def _kernel_would_show(each: Assigned) -> bool:
    """Whether the node's namespace shows the interface. A macvlan or ipvlan is only in the pod's own namespace."""
    in_subnet = any(address.gateway for address in each.addresses)
    return bool(each.host_interface) or not (each.mac or in_subnet)


def _leak(each: Assigned, seen_s: float) -> Finding:
    return Finding(
        problem=Problem.LEAKED,
        key=each.key,
        addresses=tuple(address.ip for address in each.addresses),
        pod=_pod(each),
        message="the runtime has no such sandbox and the kernel no such interface; the agent frees it once confirmed",
        seen_s=max(0.0, seen_s),
    )


def _others(snapshot: Snapshot, kernel: KernelView, runtime: Mapping[str, Sandbox]) -> Iterator[Finding]:
    known = {each.key: each for each in snapshot.attachments}
    for key, each in known.items():
        old = each.boot_id != snapshot.boot_id or snapshot.now_s - each.since_s >= YOUNG_S
        sandbox = runtime.get(key.container_id)
        addresses = tuple(address.ip for address in each.addresses)
        if key in kernel.interfaces and sandbox is None and old:
            message = (
                "its interface exists, but the runtime has no such sandbox: end what runs in its network namespace"
            )
            yield Finding(problem=Problem.ORPHANED, key=key, addresses=addresses, pod=_pod(each), message=message)
        gone = key not in kernel.interfaces and _kernel_would_show(each)
        if gone and sandbox is not None and sandbox.ready and each.state is State.ATTACHED:
            message = "the sandbox runs, but its interface is gone: delete the pod"
            yield Finding(problem=Problem.DISCONNECTED, key=key, addresses=addresses, pod=_pod(each), message=message)
    for key in sorted(kernel.interfaces.keys() - known.keys()):
        message = "its interface has no record: delete the pod, or end what runs in its network namespace"
        yield Finding(
            problem=Problem.UNRECORDED, key=key, addresses=tuple(sorted(kernel.interfaces[key])), message=message
        )


def _held(snapshot: Snapshot, kernel: KernelView) -> frozenset[str]:
    """Addresses that are in use without a record."""
    known = {each.key for each in snapshot.attachments}
    unrecorded = (ips for key, ips in kernel.interfaces.items() if key not in known)
    return kernel.local.union(*unrecorded)


def _pod(each: Assigned) -> str:
    return f"{each.pod.namespace}/{each.pod.name}" if each.pod.name else ""
