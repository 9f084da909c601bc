"""Guesses what a file is if it is not a kernel log, and says how to get the log instead."""

from __future__ import annotations

import re
from typing import Final

from muster.fleet.health.headers import HEADER

KERNEL_LINE: Final = re.compile(rb"\n" + HEADER + rb"(?<!\n)")
"""A line that only a kernel log has, with the newline before it. Bare messages cannot be recognized."""
_OTHERS_LINE: Final = re.compile(rb"(?m)^(?:<\d+>)?(?:[A-Z][a-z]{2} [ \d]\d \d\d:|\d{4}-\d\d-\d\dT)\S+ \S+ [^\s:]+: ")
"""A line of syslog, from any program."""

_PACKED: Final = {
    b"\x1f\x8b": ("gzip", "zcat"),
    b"\xfd7zXZ": ("xz", "xzcat"),
    b"(\xb5/\xfd": ("zstd", "zstdcat"),
    b"BZh": ("bzip2", "bzcat"),
    b"PK\x03\x04": ("zip", "unzip -p"),
}
"""First bytes of compressed files."""
_JOURNAL: Final = b"LPKSHHRH"
"""First bytes of a journal (systemd's Journal File Format, "Header")."""
_CONTROL_SHARE: Final = 0.1
"""A text has a smaller share of control characters. A log with blocks of zeros after a crash is recognized by its
lines."""
_PRINT: Final = "print it with `journalctl -k -o short-iso`, `dmesg`, or take kern.log"


class NoKernelLog(ValueError):
    """The file is not a kernel log: `what` it is instead, and a `hint` what to do."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what, self.hint = what, hint


def no_kernel_log(beginning: bytes) -> NoKernelLog:
    """Return the error for a log without a kernel line; `beginning` is its first piece."""
    text = beginning.lstrip()
    for magic, (name, tool) in _PACKED.items():
        if beginning.startswith(magic):
            return NoKernelLog(f"is packed with {name}", f"unpack it: {tool} FILE | muster health replay -")
    if beginning.startswith(_JOURNAL):
        how = "journalctl -k -o short-iso --file FILE | muster health replay -"
        return NoKernelLog("is a journal of systemd, not its text", f"print it: {how}")
    if not text:
        return NoKernelLog("is empty", "a kernel log is what `dmesg` or `journalctl -k` prints; may you read it?")
    if sum(byte < 32 and byte not in b"\t\n\r\x1b" for byte in beginning) > _CONTROL_SHARE * len(beginning):
        return NoKernelLog("is not text", _PRINT)
    if text[:1] in b"{[":
        return NoKernelLog("is JSON, not the text of a kernel log", _PRINT)
    if _OTHERS_LINE.search(beginning):
        return NoKernelLog("has lines of programs and none of the kernel", _PRINT)
    return NoKernelLog("has no line that begins like one of a kernel log", f"{_PRINT}; with dmesg, without -t")
