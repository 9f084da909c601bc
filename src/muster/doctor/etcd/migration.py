"""How Events move to an etcd of their own: the steps, with commands to copy."""

from __future__ import annotations

from typing import Final

import msgspec

EVENTS_PREFIX: Final = "/registry/events/"
"""Where kube-apiserver stores Events of both API groups (--etcd-prefix is /registry by default)."""


class Step(msgspec.Struct, frozen=True):
    """One step.

    Attributes:
        what: what to do and what to expect.
        commands: command lines. MAIN and EVENTS are the addresses of the two etcd clusters. etcdctl takes its
            certificates from ETCDCTL_CACERT, ETCDCTL_CERT and ETCDCTL_KEY.
    """

    what: str
    commands: tuple[str, ...] = ()


def steps(override: str) -> tuple[Step, ...]:
    """Return the steps. `override` is the value of --etcd-servers-overrides."""
    return (
        Step(
            "Start the etcd for Events. Give it as many members as the main one. While it is away, /readyz of every "
            "API server fails, so load balancers take them all out of service. Requests for Events hang until the "
            "client's timeout, and an API server that starts exits after 20 s. Other requests are answered.",
            ("etcdctl --endpoints=$EVENTS endpoint health",),
        ),
        Step(
            "On one API server after the other, add the flag, and wait until the server is ready again. Until the last "
            "one has it, the servers see different Events. Nothing else is affected.",
            (f"--etcd-servers-overrides={override}", "kubectl get --raw /readyz"),
        ),
        Step(
            "Check that new Events arrive in the new etcd: the number grows.",
            (f"etcdctl --endpoints=$EVENTS get --prefix {EVENTS_PREFIX} --count-only --write-out=fields",),
        ),
        Step(
            "Old Events stay in the main etcd, where no API server reads them. They expire there by their leases, "
            "within an hour (--event-ttl). To remove them at once, after the last API server has the flag:",
            (f"etcdctl --endpoints=$MAIN del --prefix {EVENTS_PREFIX}",),
        ),
        Step(
            "Give the space back to the disk: one member at a time, the leader last. A member does not answer while "
            "it is defragmented.",
            ("etcdctl --endpoints=$MAIN defrag",),
        ),
        Step(
            "To go back, remove the flag. Events in the second etcd are not seen any more then. Remove that etcd "
            "after the last API server runs without the flag."
        ),
    )


ADVICE: Final = (
    "Compaction: kube-apiserver compacts every 5 minutes (--etcd-compaction-interval). So etcd's own "
    "auto-compaction stays off (0): a second compactor would only end watches earlier.",
    "Defragmentation: only if less than half of the database is in use, or the quota is near. One member at a time; "
    "wait until it is healthy; move the leader away (etcdctl move-leader), and do it last. Never by a timer on all "
    "members at once.",
    "Heartbeat and election: 100 ms and 1000 ms fit members within one region. Else set the heartbeat to the largest "
    "round-trip time between members, and the election timeout to ten times that, equal on all members.",
    "snapshot-count: 10000, the default of etcd 3.6. The 100000 of etcd 3.5 needs more memory for the same work.",
    "Disk: a local SSD. Measure it with the fsync of etcd: fio --rw=write --ioengine=sync --fdatasync=1 --bs=2300 "
    "--size=22m --directory=DIR --name=etcd. The 99th percentile of fdatasync is to be below 10 ms.",
)
