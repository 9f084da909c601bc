"""Parses the beginning of kernel log lines: where the message starts, its time and its host.

Formats: `dmesg` with seconds since boot, `-T`, `-x` and `--time-format iso`; files of syslog (traditional and ISO
dates) and `journalctl -k -o short*`; records of /dev/kmsg (kernel: Documentation/ABI/testing/dev-kmsg); bare messages.

Only messages of the kernel itself count: facility 0 in /dev/kmsg, the tag `kernel` in files. So a program that logs the
words of a fault does not cause a finding.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final

# Every line is matched against this, so it is tuned for Python's engine. Sets of bytes are faster than \d and \w, and
# `(?:...|)` costs a third of `(?:...)?`. The patterns accept more than valid times, because times are parsed only in
# lines that matter.
_SINCE_BOOT: Final = rb"\[ *+[0-9.]++\](?:\[ *[TC][0-9]+\]|) "
_DATE: Final = rb"[A-Z][a-z][a-z] [ 0-9][0-9] [0-9:.]{8,15}"
_USUAL_DATE: Final = rb"[A-Z].. .. ..:..:.."
_ISO: Final = rb"[0-9]{4}-[0-9:T-]{14}(?:[.,][0-9]+|)(?:Z|[+-][0-9:]+|)"
_LONG: Final = rb"\[[A-Z][a-z]{2} " + _DATE + rb" [0-9]{4}\] "
_HOST: Final = rb"([^ \t-\r]++)"

HEADER: Final = (
    rb"(?>"
    + _SINCE_BOOT
    + rb"|[0-7],[0-9]++,[0-9]++,[^;\n]*+;"
    + rb"|(?:" + _USUAL_DATE + rb"|" + _DATE + rb"|" + _ISO + rb"|<[0-9]++>(?:" + _DATE + rb"|" + _ISO + rb")) "
    + _HOST + rb" kernel(?:\[[0-9]++\]|): (?:" + _SINCE_BOOT + rb"|)"
    + rb"|" + _LONG + rb"|" + _ISO + rb" "
    + rb"|kern +:[A-Za-z0-9_]+ *: (?:" + _SINCE_BOOT + rb"|" + _LONG + rb"|)|)"
)  # fmt: skip
"""A pattern for the text before a kernel message. Its one group is the host, if the line names it."""

_TIME: Final = re.compile(
    rb"(?:kern +:\w+ *: )?(?:<\d+>)?(?:"
    rb"\[ *(?P<boot>\d+\.\d+)\]"
    rb"|[0-7],\d+,(?P<kmsg>\d+),"
    rb"|\[[A-Z][a-z]{2} (?P<long>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?P<year>\d{4})\]"
    rb"|(?P<date>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)(?P<part>\.\d+)? "
    rb"|(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:[.,](?P<isopart>\d+))?(?P<zone>Z|[+-]\d\d:?\d\d)? )"
)
_AHEAD_S: Final = 86400.0
"""Tolerance for clocks and time zones. A later time is wrong; its line would count as new until then."""
_LAST_S: Final = 253402300799.0
"""The end of the year 9999, beyond which the API has no times."""
_MONTHS: Final = "JanFebMarAprMayJunJulAugSepOctNovDec"


class LogClock:
    """Turns the time of a log line into Unix seconds.

    Args:
        boot_s: when the machine booted, Unix seconds; 0 keeps seconds since boot.
        now_s: the time of lines without one. Dates without a year get the latest year that is not in the future. 0: not
            known.
        zone: the time zone of dates without one.
    """

    def __init__(self, *, boot_s: float = 0.0, now_s: float = 0.0, zone: tzinfo = UTC) -> None:
        self.boot_s = boot_s
        self.now_s = now_s
        self.zone = zone

    def time_of(self, line: bytes) -> float | None:
        """Return when the line was written; None without a time or with an impossible one."""
        match = _TIME.match(line)
        if match is None:
            return None
        try:
            said = self._time(match)
        except (ValueError, OverflowError):
            return None
        return said if 0.0 <= said <= (self.now_s + _AHEAD_S if self.now_s else _LAST_S) else None

    def _time(self, match: re.Match[bytes]) -> float:
        kind = match.lastgroup
        if kind == "boot":
            return self.boot_s + float(match["boot"])
        if kind == "kmsg":
            return self.boot_s + int(match["kmsg"]) / 1e6
        said = {name: value.decode() for name, value in match.groupdict().items() if value is not None}
        if "iso" in said:
            when = datetime.fromisoformat(said["iso"]).replace(tzinfo=self._zone(said.get("zone", "")))
            return when.timestamp() + float(f"0.{said.get('isopart', '0')}")
        if "long" in said:
            return self._date(said["long"], int(said["year"])).timestamp()
        return self._without_year(said["date"]) + float(f"0{said.get('part', '.0')}")

    def _zone(self, text: str) -> tzinfo:
        if not text:
            return self.zone
        if text == "Z":
            return UTC
        minutes = int(text[1:3]) * 60 + int(text[-2:])
        return timezone(timedelta(minutes=-minutes if text[0] == "-" else minutes))

    def _date(self, text: str, year: int) -> datetime:
        month = _MONTHS.index(text[:3]) // 3 + 1
        hour, minute, second = (int(part) for part in text[7:].split(":"))
        return datetime(year, month, int(text[4:6]), hour, minute, second, tzinfo=self.zone)

    def _without_year(self, text: str) -> float:
        """Return the newest matching time that is not after tomorrow; 29 February may be years ago."""
        latest_s = self.now_s + _AHEAD_S
        year = datetime.fromtimestamp(latest_s, self.zone).year
        for candidate in range(year, year - 8, -1):
            try:
                when_s = self._date(text, candidate).timestamp()
            except ValueError:
                continue
            if when_s <= latest_s:
                return when_s
        raise ValueError(text)
