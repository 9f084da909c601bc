"""The form of a ledger in its file."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Final

import msgspec

from muster.kube.durablefile import write_durably
from muster.network.traffic.backend import Direction
from muster.network.traffic.ledger.charges import Owner
from muster.network.traffic.report import Row

VERSION: Final = 1


class Baseline(msgspec.Struct, frozen=True, array_like=True):
    """The value of a kernel's counter up to which the rows hold its increase."""

    subject: str
    cls: str
    direction: Direction
    packets: int
    bytes: int


class PodRow(msgspec.Struct, frozen=True, array_like=True):
    """What a counter of the kernel added since its subject came."""

    subject: str
    cls: str
    direction: Direction
    packets: int
    bytes: int


class Interface(msgspec.Struct, frozen=True, array_like=True):
    """The counters of an interface of the uplink, up to which the totals hold their increase."""

    name: str
    in_bytes: int
    out_bytes: int
    in_packets: int
    out_packets: int


class LedgerState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a ledger holds. It is written in one step, so that its parts always belong together.

    Attributes:
        ledger_id: random; of this ledger alone.
        instance: of the kernel's counters to which the baselines belong.
        baselines: by counter.
        owners: by subject, of all subjects that the kernel may be counting.
        rows: totals by account.
        pods: totals by subject.
        seen_s: when an account last had a subject, seconds since 1970.
        boot: ID of the boot to which `interfaces` belongs.
        interfaces: of the uplink.
        nic: in and out bytes, in and out packets of all interfaces.
        ports: of RDMA devices, of the same boot.
        taken_s: time of the counters.
    """

    version: int = VERSION
    ledger_id: str
    instance: str = ""
    baselines: tuple[Baseline, ...] = ()
    owners: dict[str, Owner] = {}
    rows: tuple[Row, ...] = ()
    pods: tuple[PodRow, ...] = ()
    seen_s: tuple[tuple[Owner, float], ...] = ()
    boot: str = ""
    interfaces: tuple[Interface, ...] = ()
    nic: tuple[int, int, int, int] = (0, 0, 0, 0)
    ports: tuple[Interface, ...] = ()
    taken_s: float = 0.0


class DamagedLedger(Exception):
    """The file does not hold a whole ledger of a known version."""


def read_state(path: Path) -> LedgerState | None:
    """Return the state in a file; None without a file.

    Raises:
        DamagedLedger: it cannot be used.
        OSError: it cannot be read now.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    body, _, checksum = content.rstrip(b"\n").rpartition(b"\n")
    if checksum.decode(errors="replace") != f"{zlib.crc32(body):08x}":
        raise DamagedLedger("its checksum is wrong")
    try:
        state = msgspec.json.decode(body, type=LedgerState)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedLedger(str(error)) from error
    if state.version != VERSION:
        raise DamagedLedger(f"its version is {state.version}, and this program knows version {VERSION}")
    return state


def write_state(path: Path, state: LedgerState) -> None:
    """Replace the file. Raises OSError; the file then holds the old state, or the new one."""
    body = msgspec.json.encode(state)
    write_durably(path, body + f"\n{zlib.crc32(body):08x}\n".encode())
