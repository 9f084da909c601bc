"""A finding about an estate of clusters: what is wrong, where, the numbers behind it, and the fix."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """How urgent a finding is. Scripts read these values: never rename one."""

    ERROR = "error"
    """Packets are lost or go to the wrong place, or the provider refuses it."""
    WARNING = "warning"
    """It works now, and breaks with growth or in a common setup."""


class Finding(msgspec.Struct, frozen=True, rename="camel"):
    """One finding.

    Attributes:
        id: stable name of the rule.
        where: clusters and ranges that it is about.
        what: what is wrong, in one sentence.
        fix: what to change.
        source: where the rule is documented; "" if it follows from the addresses alone.
    """

    id: str
    severity: Severity
    where: tuple[str, ...]
    what: str
    fix: str
    source: str = ""
