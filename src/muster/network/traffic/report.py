"""The report of a node's traffic: what its ledger holds, and what the uplink's interfaces counted."""

from __future__ import annotations

from typing import Final

import msgspec

HOST_JOB: Final = "(host)"
"""Job of traffic of the node's own programs. No name of Kubernetes has parentheses."""
PULLS_JOB: Final = "(image-pulls)"
"""Job of image pulls that no pod waits for."""
CACHE_JOB: Final = "(data-cache)"
"""Job of the data cache's traffic for no known job."""
UNKNOWN_JOB: Final = "(unknown)"
"""Job of counters whose pod is not known, such as after a damaged ledger."""
ENDED_JOB: Final = "(ended)"
"""Job of the sums of jobs that ended long ago."""
TUNNEL_JOB: Final = "(tunnel)"
"""Not a job: what a CNI's overlay carried, without (`inner`) and with its envelope (`outer`)."""

RDMA_CLASS: Final = "rdma"
"""Class of what RDMA ports counted. It bypasses the kernel's network, and is left out of the check against the NICs."""
SHARED_JOB: Final = "(shared-rdma)"
"""Job of RDMA ports that several jobs of the node may use: the kernel does not know whose bytes they are."""


class Row(msgspec.Struct, frozen=True, array_like=True, order=True):
    """What a job sent or received on one node since its ledger began. A row never decreases while it is there.

    Attributes:
        namespace: of the job; "" for the rows of the node itself.
        job: its name; "" for pods without one, all of a namespace together.
        team: of its pods.
        cls: class of the other end's address.
        direction: `in` or `out`, as the pod sees it.
        bytes: of IP packets, without link-layer headers.
        packets: as the kernel counted them: several that the network card splits or merges count as one.
    """

    namespace: str
    job: str
    team: str
    cls: str
    direction: str
    bytes: int
    packets: int


class Nic(msgspec.Struct, frozen=True):
    """What the interfaces of the uplink counted, since the ledger began."""

    in_bytes: int = 0
    out_bytes: int = 0
    in_packets: int = 0
    out_packets: int = 0


class TrafficReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one ledger. A job's total is the sum over the newest report of each ledger.

    Attributes:
        node, node_uid: the node; node_uid is "" while it is unknown.
        ledger_id: of the ledger. A node whose ledger was lost or damaged begins another one.
        taken_s: time of the kernel's counters, seconds since 1970.
        age_s: time since then, when the agent sent this: clocks of nodes differ.
        interval_s: time since the counters before these; 0 for none.
        rows: by account.
        previous: the same `interval_s` ago, for rates.
        nic, nic_previous: of the interfaces of the uplink.
        interfaces: their names.
        backend: name of what counts.
        problems: what makes the numbers incomplete, for people.
    """

    node: str
    node_uid: str
    ledger_id: str
    taken_s: float
    age_s: float = 0.0
    interval_s: float = 0.0
    rows: tuple[Row, ...] = ()
    previous: tuple[Row, ...] = ()
    nic: Nic = Nic()
    nic_previous: Nic = Nic()
    interfaces: tuple[str, ...] = ()
    backend: str = ""
    problems: tuple[str, ...] = ()

    def accounts(self) -> tuple[Row, ...]:
        """Return the rows of jobs and of the node: each byte once."""
        return tuple(row for row in self.rows if row.job != TUNNEL_JOB)
