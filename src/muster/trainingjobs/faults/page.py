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

Muster charges each fault of a TrainingJob to one of three budgets. So broken hardware does not use up
the retries of a correct program:

| cause | counted in | bounded by | default |
|---|---|---|---|
| `user` | `status.restarts.user` | `spec.backoffLimit` | 3 |
| `infrastructure` | `status.restarts.infrastructure` | `spec.infrastructureLimit` | 50 |
| `unknown` | `status.restarts.unknown` | `spec.unknownLimit` | 5 |

The table below decides to which one. `status.faults[].rule` holds the name of the rule that decided.

One incident often leaves several pieces of evidence, such as an exit code and a node that is not Ready. The
controller decides as follows:

- For each piece of evidence, the first matching rule of the table applies. The rule with the lowest tier
  decides. If several rules have this tier, the earliest evidence decides.
- If one rank fails, other ranks often fail because they lost it. These failures have a high tier, so they
  decide only if there is no other evidence. Until then, the fault names the slot whose connection broke, if
  the controller knows it.
- The restart begins before the decision is final. If evidence of a lower tier arrives later, the controller
  changes the charge and refunds the old one. While the restart lasts, all evidence counts. After it, only
  evidence of broken hardware counts, up to {window:.0f} s after the fault.
- If a budget is used up, the job fails {settle:.0f} s after its last fault. If a supervisor does not answer,
  the controller first waits until the supervisor answers or counts as lost.
- If a node is not Ready but its supervisor still answers, that is not a fault.
- If the connection to a supervisor breaks, the supervisor counts as lost after {cut:.0f} s. The time is
  {contact:.0f} s if the connection did not break, or if the node has renewed its Lease in the meantime.
- If more than half of all supervisors do not answer, the cause may be the controller's own network. The
  controller then waits for at most {blackout:.0f} s, and decides by the state of nodes and pods in the API
  server.

The column *slot* shows what happens to the slot. *Kept*: the ranks restart in the same pod. *Replaced*: the
slot gets a new pod. *Excluded*: the new pod must not use the same node. If the pod has waited
{exclusion:.0f} s for another node (`muster controller --exclusion`), it may use the node again, if the node
is Ready.

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
        f"A node condition that is True and whose type matches `{_code(CONDITIONS.pattern)}`, and a "
        f"Warning Event about the node whose reason matches `{_code(REASONS.pattern)}`.\n",
        "\n## Sources of the rules\n\n",
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
