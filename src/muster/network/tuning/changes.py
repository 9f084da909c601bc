"""Decides which settings of the kernel to write, and notices what other programs changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from muster.network.tuning.record import Entry, Record


class Foreign(NamedTuple):
    """A setting that another program changed after the agent. It is not written again.

    Attributes:
        name: of the setting.
        value: now.
        ours: what the agent wrote.
        wanted: what the plan needs.
    """

    name: str
    value: int
    ours: int
    wanted: int


class Plan(NamedTuple):
    """What to do.

    Attributes:
        record: the record to write before the settings. It holds entries that are not applied yet.
        writes: (name, value), in this order.
        foreign: changes of other programs.
    """

    record: Record
    writes: tuple[tuple[str, int], ...]
    foreign: tuple[Foreign, ...]


def decide(wanted: Mapping[str, int], current: Mapping[str, int], record: Record, boot: str) -> Plan:
    """Decide. Pure.

    A value is only raised. If another program changes it afterwards, that program's value stays until the
    configuration changes: two programs that write in turns would never end.

    Args:
        wanted: the plan's values; empty to restore everything.
        current: values of the kernel. A setting that is absent has no file, such as those of conntrack before its
            module is loaded.
        record: what the agent changed before.
        boot: ID of this boot. A record of another boot describes values that are gone.
    """
    old = record.entries if record.boot == boot else {}
    entries: dict[str, Entry] = {}
    writes: dict[str, int] = {}
    foreign: list[Foreign] = []
    for name in sorted({*wanted, *old}):
        value, entry, want = current.get(name), old.get(name), wanted.get(name)
        if value is None:
            if entry is not None:
                entries[name] = entry
            continue
        entry = _settled(entry, value)
        if want is None:
            if entry is not None and _is_ours(entry, value) and value != entry.former:
                entries[name] = Entry(entry.former, entry.former, entry.former, value)
                writes[name] = entry.former
            continue
        if entry is not None and not _is_ours(entry, value):
            if want == entry.wanted:
                entries[name] = entry
                foreign.append(Foreign(name, value, entry.value, want))
                continue
            entry = None  # the configuration is new, so the other program's value is the former one
        target = max(want, entry.former) if entry is not None else want
        if entry is None and value >= target:
            continue
        if value == target and entry is not None:
            entries[name] = Entry(entry.former, value, want, value, applied=True)
            continue
        entries[name] = Entry(entry.former if entry is not None else value, target, want, value)
        writes[name] = target
    return Plan(Record(boot, entries), _in_order(writes, current), tuple(foreign))


def applied(record: Record, name: str, value: int) -> Record:
    """Return the record after the kernel took a setting, with the value that it made of it."""
    entry = record.entries[name]
    left = {key: each for key, each in record.entries.items() if key != name}
    if value == entry.former:
        return Record(record.boot, left)
    return Record(record.boot, {**left, name: _taken(entry, value)})


def _settled(entry: Entry | None, value: int) -> Entry | None:
    """Return the entry after a crash between the record and the write, or between the write and the record.

    The kernel rounds the number of buckets up, so a value above the written one counts as taken.
    """
    if entry is None or entry.applied or value == entry.before or value < entry.value:
        return entry
    return _taken(entry, value)


def _taken(entry: Entry, value: int) -> Entry:
    return Entry(entry.former, value, entry.wanted, entry.before, applied=True)


def _is_ours(entry: Entry, value: int) -> bool:
    return value == (entry.value if entry.applied else entry.before)


def _in_order(writes: Mapping[str, int], current: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Raise the largest threshold first and lower it last, so that thresholds always rise from the first to the third.

    Buckets come before the number of connections, by name.
    """
    raised = sorted((each for each in writes.items() if each[1] >= current[each[0]]), reverse=True)
    lowered = sorted(each for each in writes.items() if each[1] < current[each[0]])
    return (
        *(each for each in raised if "gc_thresh" in each[0]),
        *sorted(each for each in raised if "gc_thresh" not in each[0]),
        *lowered,
    )
