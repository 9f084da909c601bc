"""Writes docs/whose-fault.md from the table: `python -m muster.trainingjobs.faults.page [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from muster.api.generated import write_or_check
from muster.trainingjobs.faults.hardware import CONDITIONS, REASONS
from muster.trainingjobs.faults.rules import HARDWARE_WINDOW_S
from muster.trainingjobs.faults.table import TABLE, UNEXPLAINED, Row
from muster.trainingjobs.snapshot import Settings

PAGE: Final = Path(__file__).resolve().parents[4] / "docs/whose-fault.md"
_HOW: Final = "python -m muster.trainingjobs.faults.page"

_HEAD: Final = """# Whose fault

<!-- Written by {how}; change src/muster/trainingjobs/faults/table.py instead. -->

Each fault of a TrainingJob is charged to one of three budgets, so that broken hardware does not use up the retries of a
correct program:

| cause | counted in | bounded by | default |
|---|---|---|---|
| `user` | `status.restarts.user` | `spec.backoffLimit` | 3 |
| `infrastructure` | `status.restarts.infrastructure` | `spec.infrastructureLimit` | 50 |
| `unknown` | `status.restarts.unknown` | `spec.unknownLimit` | 5 |

`status.faults[].rule` holds the id of the row that decided.

How one incident with many traces is judged:

- Each trace matches the first row that speaks of it. The row with the lowest tier decides; within a tier, what happened
  first. Ranks that die because another one did are in a tier of their own and decide nothing while something else does;
  until then the slot whose connection broke is named, where there is one.
- The restart does not wait for the verdict. Evidence of a lower tier that comes later moves the charge and gives it
  back: while the restart is under way for everything, and up to {window:.0f} s after the fault for hardware.
- A job fails for good only {settle:.0f} s after its last fault, and not while one of its supervisors is silent.
- A node that is not Ready while its supervisor talks is no fault. A supervisor whose connection broke is lost after
  {cut:.0f} s, or after {contact:.0f} s where its node has renewed its Lease since or the connection did not break.
  While more than half of all supervisors are silent, the API's word on nodes and pods is waited for, up to
  {blackout:.0f} s.

"Replaced": the slot gets a new pod; without it ranks start again in the pods they had. "Excluded": the new pod keeps
away from the node; once it has waited {exclusion:.0f} s for another one in vain (`muster controller --exclusion`), it
may use the node if that is Ready.

"""


def page() -> str:
    """The page as Markdown."""
    settings = Settings()
    lines = [
        _HEAD.format(
            how=_HOW,
            window=HARDWARE_WINDOW_S,
            settle=settings.settle_s,
            cut=settings.cut_timeout_s,
            contact=settings.contact_timeout_s,
            blackout=settings.blackout_s,
            exclusion=settings.exclusion_s,
        ),
        "| tier | rule | evidence | cause | slot | why |\n|---|---|---|---|---|---|\n",
        *(_line(row) for row in (*TABLE, UNEXPLAINED)),
        "\n## Hardware evidence\n\n",
        f"A node condition that is True and whose type matches `{_code(CONDITIONS.pattern)}`, or a Warning Event about "
        f"the node whose reason matches `{_code(REASONS.pattern)}`.\n",
        "\n## Where the facts come from\n\n",
        *(f"- `{row.id}`: {row.source}\n" for row in TABLE if row.source),
    ]
    return "".join(lines)


def _line(row: Row) -> str:
    slot = "replaced" * row.replace + ", excluded" * row.exclude
    return f"| {row.tier} | `{row.id}` | {row.what} | **{row.cause}** | {slot.strip(', ') or 'kept'} | {row.why} |\n"


def _code(pattern: str) -> str:
    return pattern.replace("\\.", ".")


def main(arguments: list[str]) -> int:
    """Write the page, or with --check compare it; returns the exit status."""
    return write_or_check(arguments, lambda: {PAGE: page()}, _HOW, "the table says")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
