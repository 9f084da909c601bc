"""Writes docs/whose-fault.md from the table: `python -m muster.trainingjobs.faults.page [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from muster.api.generated import write_or_check
from muster.trainingjobs.faults.evidence import BLACKOUT_S
from muster.trainingjobs.faults.hardware import CONDITIONS, REASONS
from muster.trainingjobs.faults.rules import HARDWARE_WINDOW_S
from muster.trainingjobs.faults.table import TABLE, UNEXPLAINED, Row
from muster.trainingjobs.snapshot import CONTACT_TIMEOUT_S, CUT_TIMEOUT_S, EXCLUSION_S, SETTLE_S

PAGE: Final = Path(__file__).resolve().parents[4] / "docs/whose-fault.md"
_HOW: Final = "python -m muster.trainingjobs.faults.page"

_HEAD: Final = """# Whose fault

<!-- Written by {how}; change src/muster/trainingjobs/faults/table.py instead. -->

Each fault of a TrainingJob is charged to one of three budgets. So broken hardware does not use up the retries
of a correct program:

| cause | counted in | bounded by | default |
|---|---|---|---|
| `user` | `status.restarts.user` | `spec.backoffLimit` | 3 |
| `infrastructure` | `status.restarts.infrastructure` | `spec.infrastructureLimit` | 50 |
| `unknown` | `status.restarts.unknown` | `spec.unknownLimit` | 5 |

`status.faults[].rule` holds the id of the row that decided.

How the controller judges one incident with many traces:

- Each trace matches the first row that describes it. The row with the lowest tier decides. Within a tier,
  the first event decides.
- Ranks that fail because another rank failed have a tier of their own. They decide only if other traces are
  missing. Until another trace decides, the controller names the slot whose connection broke, if it knows
  one.
- The restart does not wait for the verdict. Later evidence of a lower tier moves the charge and refunds the
  old one. Any evidence counts while the restart is under way. Evidence of hardware counts up to
  {window:.0f} s after the fault.
- A job fails for good only {settle:.0f} s after its last fault, and not while one of its supervisors is
  silent.
- A node that is not Ready while its supervisor talks is not a fault.
- A supervisor whose connection broke is lost after {cut:.0f} s. It is lost after {contact:.0f} s if its
  node has renewed its Lease since, or if the connection did not break.
- While more than half of all supervisors are silent, the controller waits for the API server's view of
  nodes and pods, for at most {blackout:.0f} s.

In the column *slot*, *replaced* means that the slot gets a new pod; otherwise ranks restart in their pods.
*Excluded* means that the new pod avoids the node. If it has waited {exclusion:.0f} s for another node
(`muster controller --exclusion`), it may use the node if that is Ready.

"""


def page() -> str:
    """The page as Markdown."""
    lines = [
        _HEAD.format(
            how=_HOW,
            window=HARDWARE_WINDOW_S,
            settle=SETTLE_S,
            cut=CUT_TIMEOUT_S,
            contact=CONTACT_TIMEOUT_S,
            blackout=BLACKOUT_S,
            exclusion=EXCLUSION_S,
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
