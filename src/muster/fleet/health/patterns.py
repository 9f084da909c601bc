"""The kernel messages that matter for a node's health, as a table of patterns.

Each pattern matches the beginning of a message, up to the end of the part that distinguishes faults. All lines of a
flood have the same beginning, so a flood is counted without reading each line. Named groups are read once for each
different beginning: `component`, `code`, and those in `_CODES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

_PCI: Final = rb"(?>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7]|))"
"""Atomic: avoids backtracking into an address without its function."""
_DEVICE: Final = rb"[A-Za-z0-9_./:-]{1,64}"  # faster than \w

_WHOSE: Final = rb"(?: pid=[^,\n]{0,24},)?(?: name=[^,\n]{0,24},)?"


class Row(NamedTuple):
    """One kind of message. `code` is used if the pattern has no group of that name."""

    check: str
    code: str
    pattern: bytes


class Sign(NamedTuple):
    """The fault that the beginning of a message reports."""

    check: str
    component: str
    code: str


_CARDS: Final = (
    b"mlx5_core", b"mlx4_core", b"mlx4_en", b"ice", b"i40e", b"ixgbe", b"igb", b"igc", b"e1000e", b"bnxt_en", b"ena",
    b"efa", b"qede", b"tg3", b"cxgb4", b"hns3",
)  # fmt: skip
_CARD_SAYS: Final = (
    rb" (?P<component>" + _PCI + rb")[^\n]{0,119}?[^A-Za-z0-9\n](?P<nic>Link [Dd]own|NIC Link is Down|Cable unplugged"
    rb"|health compromised|timeout\. Will cause a leak|unrecoverable hardware error|firmware internal error"
    rb"|[TR]X timeout|tx_timeout|NETDEV WATCHDOG|High Temperature|insufficient power|PF reset issued|Reset adapter"
    rb"|[Rr]esetting due to|Trigger reset is on|Admin queue is closed|Device isn't ready)"
)
_IO_ERROR: Final = rb" error,? (?:on )?dev (?P<component>[\w-]{1,32})"
_AER_SAYS: Final = rb"(?P<aer>\w+(?: \([\w-]+\))?)"


def _each(beginnings: tuple[bytes, ...], check: str, code: str, rest: bytes) -> tuple[Row, ...]:
    return tuple(Row(check, code, beginning + rest) for beginning in beginnings)


ROWS: Final = (
    # NVIDIA's driver. Formats: NVIDIA's Xid guide; older drivers omit `PCI:` and the domain.
    Row(
        "xid", "",
        rb"NVRM: Xid \((?:PCI:|)(?P<component>[0-9a-fA-F:.]++)(?: GPU-I:\d+|)(?:,[^)\n]{0,64}|)\): (?P<xid>"
        rb"154," + _WHOSE + rb" GPU recovery action changed from 0x[0-9a-fA-F]+ \([^)\n]{0,40}\) to "
        rb"0x(?P<recovery>[0-9a-fA-F]+)"
        rb"|1(?:4[4-9]|50)," + _WHOSE + rb" (?P<unit>[\w/]{1,48}) +"
        rb"(?P<severity>[A-Za-z -]{1,16}?) +XC\d+ +i\d+ +Link +-?\d+ +\(0x[0-9a-fA-F]+ (?P<status>0x[0-9a-fA-F]{1,8})"
        rb"|\d{1,5}+(?!\d))",
    ),
    Row(
        "sxid", "",
        rb"nvidia-nvswitch\d+: SXid \(PCI:(?P<component>[0-9a-fA-F:.]+)\): (?P<sxid>\d{1,6}), "
        rb"(?P<severity>Fatal|Non-fatal)?",
    ),
    Row("nvrm", "fallen-off-bus", rb"NVRM: GPU (?P<component>" + _PCI + rb"): GPU has fallen off the bus"),
    Row(
        "nvrm", "fallen-off-bus",
        rb"NVRM: The NVIDIA GPU (?P<component>" + _PCI + rb")[^\n]{0,160}?fallen off the bus and is not responding",
    ),
    *_each(
        (b"NVRM: ", b"    "), "nvrm", "fallen-off-bus",
        rb"(?: {0,56}NVRM: )?(?:has )?fallen off the bus and is not responding",
    ),
    Row("nvrm", "named", rb"NVRM: The NVIDIA GPU (?P<component>" + _PCI + rb")"),
    Row("nvrm", "api-mismatch", rb"NVRM: API mismatch: "),
    Row(
        "nvrm", "init-failed",
        rb"NVRM: (?:GPU (?P<component>" + _PCI + rb"): )?(?:RmInitAdapter failed!|rm_init_adapter failed)",
    ),
    Row("nvrm", "uvm-fatal", rb"NVRM: nvGpuOpsReportFatalError: "),
    Row("nvrm", "bad-bar", rb"NVRM: This PCI I/O region assigned to your NVIDIA device is invalid"),
    Row("nvrm", "no-gpu", rb"NVRM: No NVIDIA (?:GPU|graphics adapter) found"),
    # Network cards.
    *_each(_CARDS, "nic", "", _CARD_SAYS),
    Row("nic", "tx-timeout", rb"NETDEV WATCHDOG: (?P<component>[\w.-]{1,15})"),
    Row("nic", "link-down", rb"bond[\w.-]{0,11}: \(slave (?P<component>[\w.-]{1,15})\): link status definitely down"),
    # Disks and file systems.
    *_each((b"blk_update_request: ", b"Buffer ", b""), "disk", "io-error", rb"I/O" + _IO_ERROR),
    *_each((b"blk_update_request: ", b""), "disk", "io-error", rb"critical (?:medium|target)" + _IO_ERROR),
    Row(
        "disk", "",
        rb"nvme (?P<component>nvme\d+): (?:I/O (?:tag )?\d+ [^\n]{0,60}?(?P<disk>timeout)"
        rb"|(?P<disk2>controller is down|Removing after probe failure|Device not ready))",
    ),
    Row("disk", "command-failed", rb"ata(?P<ata>\d{1,3})(?:\.\d\d)?: (?:failed command|exception Emask)"),
    Row("filesystem", "read-only", rb"EXT4-fs \((?P<component>" + _DEVICE + rb")\): Remounting filesystem read-only"),
    Row("filesystem", "error", rb"EXT4-fs error \(device (?P<component>" + _DEVICE + rb")\)"),
    Row("filesystem", "io-error", rb"EXT4-fs \((?P<component>" + _DEVICE + rb")\): I/O error"),
    Row("filesystem", "error", rb"Aborting journal on device (?P<component>[\w-]{1,32})"),
    Row("filesystem", "error", rb"JBD2: Detected IO errors while flushing file data on (?P<component>[\w-]{1,32})"),
    Row(
        "filesystem", "read-only",
        rb"XFS \((?P<component>" + _DEVICE + rb")\): [^\n]{0,60}?(?:has been shut down|[Ss]hutting down filesystem)",
    ),
    Row(
        "filesystem", "error",
        rb"XFS \((?P<component>" + _DEVICE + rb")\): "
        rb"(?:[Mm]etadata (?:I/O [Ee]rror|corruption)|Corruption |log I/O error|Internal error)",
    ),
    Row(
        "filesystem", "read-only",
        rb"BTRFS (?:info|warning|critical|error) \(device (?P<component>" + _DEVICE + rb")\S{0,40}\): forced readonly",
    ),
    Row("filesystem", "error", rb"BTRFS (?:critical|error) \(device (?P<component>" + _DEVICE + rb")"),
    # Memory, processors and the kernel itself.
    Row("memory", "oom", rb"Out of memory: Kill(?:ed)? process"),
    Row("memory", "oom-cgroup", rb"Memory cgroup out of memory: Kill(?:ed)? process"),
    Row("memory", "", rb"EDAC (?P<component>MC\d{1,3}): \d+ (?P<edac>CE|UE) "),
    Row("memory", "page-failure", rb"Memory failure: 0x"),
    Row("cpu", "machine-check", rb"mce: \[Hardware Error\]: "),
    Row("cpu", "", rb"\{\d+\}\[Hardware Error\]: event severity: (?P<ghes>corrected|recoverable|fatal|info)"),
    Row("kernel", "hung-task", rb"INFO: task [^\n]{1,48}? blocked for more than"),
    *_each((b"watchdog: ", b""), "kernel", "soft-lockup", rb"BUG: soft lockup - CPU#(?P<cpu>\d{1,4})"),
    *_each(
        (b"NMI ", b""), "kernel", "hard-lockup",
        rb"watchdog: (?:Watchdog detected )?hard LOCKUP on cpu (?P<cpu>\d{1,4})",
    ),
    *_each((b"rcu: ", b""), "kernel", "rcu-stall", rb"INFO: rcu_\w{1,16} (?:self-)?detected"),
    Row("kernel", "oops", rb"BUG: (?:unable to handle|kernel NULL pointer)"),
    Row("kernel", "oops", rb"Oops: "),
    Row("kernel", "oops", rb"kernel BUG at "),
    Row("kernel", "panic", rb"Kernel panic - not syncing"),
    # PCI Express: errors that a port reports for a device below it, and errors of the device itself with any driver.
    Row(
        "pcie", "",
        rb"pcieport (?P<port>" + _PCI + rb"): AER: (?:Multiple )?" + _AER_SAYS
        + rb" error (?:message )?received(?: from)?:?(?: (?P<component>" + _PCI + rb"))?",
    ),
    Row("pcie", "contained", rb"pcieport (?P<component>" + _PCI + rb"): DPC: containment event"),
    Row("pcie", "link-down", rb"pcieport (?P<component>" + _PCI + rb"): pciehp: Slot\([\w-]{1,16}\): Link Down"),
    Row(
        "pcie", "",
        rb"[A-Za-z0-9_-]{2,24}+ (?P<component>" + _PCI + rb"): (?:AER: )?PCIe Bus Error: severity=" + _AER_SAYS,
    ),
)  # fmt: skip

NAMED: Final = ("nvrm", "named")
"""This message only names the GPU of the next messages."""

_RECOVERY: Final = {0: "none", 1: "gpu-reset", 2: "node-reboot", 3: "drain-p2p", 4: "drain-and-reset"}
"""nvmlDeviceGpuRecoveryAction_t, which Xid 154 prints as a number."""

_NIC: Final = {
    b"link down": "link-down", b"nic link is down": "link-down", b"cable unplugged": "unplugged",
    b"health compromised": "health-lost", b"timeout. will cause a leak": "command-timeout",
    b"unrecoverable hardware error": "unrecoverable", b"firmware internal error": "unrecoverable",
    b"tx timeout": "tx-timeout", b"tx_timeout": "tx-timeout", b"rx timeout": "rx-timeout",
    b"netdev watchdog": "tx-timeout", b"high temperature": "high-temperature",
    b"insufficient power": "insufficient-power", b"pf reset issued": "reset", b"reset adapter": "reset",
    b"resetting due to": "reset", b"trigger reset is on": "reset", b"admin queue is closed": "unrecoverable",
    b"device isn't ready": "unrecoverable",
}  # fmt: skip

_DISK: Final = {
    b"timeout": "timeout", b"controller is down": "controller-down", b"removing after probe failure": "lost",
    b"device not ready": "lost",
}  # fmt: skip

_AER: Final = {b"corrected": "corrected", b"uncorrected (fatal)": "fatal", b"uncorrectable (fatal)": "fatal"}


def _xid(said: dict[str, bytes]) -> str:
    number = said["xid"].split(b",")[0].decode()
    if "recovery" in said:
        value = int(said["recovery"], 16)
        return f"{number}/{_RECOVERY.get(value, f'0x{value:x}')}"
    if "status" in said:
        severity = "nonfatal" if said["severity"].lower().startswith(b"non") else "fatal"
        unit = said["unit"].decode().rpartition("/")[2]
        return f"{number}/{severity}/{unit}/0x{int(said['status'], 16):08x}"
    return str(int(number))


def _sxid(said: dict[str, bytes]) -> str:
    severity = {b"Fatal": "fatal", b"Non-fatal": "nonfatal"}.get(said.get("severity", b""), "unknown")
    return f"{severity}/{int(said['sxid'])}"


_CODES: Final[dict[str, Callable[[dict[str, bytes]], str]]] = {
    "xid": _xid,
    "sxid": _sxid,
    "nic": lambda said: _NIC[said["nic"].lower()],
    "disk": lambda said: _DISK[said["disk"].lower()],
    "disk2": lambda said: _DISK[said["disk2"].lower()],
    "edac": lambda said: "corrected" if said["edac"] == b"CE" else "uncorrected",
    "ghes": lambda said: f"firmware-{said['ghes'].decode()}",
    "aer": lambda said: _AER.get(said["aer"].lower(), "nonfatal"),
}


def _first(row: Row) -> bytes:
    """Return the byte with which every match of the row begins; b"" if it varies."""
    byte = row.pattern.removeprefix(b"\\")[:1]
    return byte if byte != b"[" else b""


def _by_first() -> Mapping[bytes, list[Row]]:
    rows: dict[bytes, list[Row]] = {}
    for row in ROWS:
        rows.setdefault(_first(row), []).append(row)
    return rows


def _joined() -> bytes:
    """Join all rows into one pattern that tests a line's first byte first, because most lines match no row."""
    groups = []
    for first, rows in _by_first().items():
        bare = (re.sub(rb"\(\?P<\w+>", b"(?:", row.pattern) for row in rows)
        if first:
            bare = (pattern.removeprefix(b"\\").removeprefix(first) for pattern in bare)
        groups.append(re.escape(first) + b"(?:" + b"|".join(bare) + b")")
    return b"(?:" + b"|".join(groups) + b")"


BEGINNING: Final = _joined()
"""A pattern for the beginnings of all rows, without groups."""

_FULL: Final = {first: tuple((row, re.compile(row.pattern)) for row in rows) for first, rows in _by_first().items()}


def sign_of(beginning: bytes) -> Sign | None:
    """Parse what BEGINNING matched; None if no row matches it."""
    for row, pattern in (*_FULL.get(beginning[:1], ()), *_FULL[b""]):
        match = pattern.fullmatch(beginning)
        if match is not None:
            said = {name: value for name, value in match.groupdict().items() if value is not None}
            code = next((read(said) for name, read in _CODES.items() if name in said), row.code)
            return Sign(row.check, _component(said), code)
    return None


def _component(said: dict[str, bytes]) -> str:
    if "cpu" in said:
        return f"cpu{int(said['cpu'])}"
    if "ata" in said:
        return f"ata{int(said['ata'])}"
    text = said.get("component", said.get("port", b"")).decode()
    return pci_address(text) if text.count(":") >= 2 or ("xid" in said and ":" in text) else text


def pci_address(text: str) -> str:
    """Normalize a PCI address: `00000000:3B:00.0`, `0000:3b:00` and `3b:00` become `0000:3b:00.0`."""
    place, _, function = text.lower().partition(".")
    parts = place.split(":")
    domain = parts[-3] if len(parts) > 2 else "0"
    if len(parts) < 2 or not all(parts[-2:]):
        return text.lower()
    return f"{int(domain or '0', 16):04x}:{parts[-2]}:{parts[-1]}.{function or '0'}"
