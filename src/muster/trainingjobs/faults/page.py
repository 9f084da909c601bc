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

The rules in the second table decide which budget a fault is charged to. `status.faults[].rule` holds the
name of the rule that decided.

The *supervisor* is process 1 of each worker pod. It starts the ranks and reports to the controller. One
incident often leaves several pieces of evidence, such as an exit code and a node that is not Ready. The
controller decides as follows:

- For each piece of evidence, the first matching rule of the table applies. The matching rule with the
  lowest tier decides. If several matching rules have this tier, the earliest evidence decides.
- If one rank fails, other ranks often fail because they lost their connection to it. The rules for these
  failures have a high tier, so they decide only if there is no other evidence. While such failures are the
  only evidence, the fault names a slot whose supervisor has lost its connection to the controller, if there
  is one.
- The restart begins before the decision is final. If evidence of a lower tier arrives later, the controller
  charges the fault to the new budget and refunds the old one. Until the restart is complete, the controller
  uses all new evidence. After that, it uses only evidence of broken hardware, up to {window:.0f} s after the
  fault.
- If a budget is used up, the job fails {settle:.0f} s after its last fault. If a supervisor does not answer,
  the controller first waits until the supervisor answers or counts as lost.
- If a node is not Ready but its supervisor still answers, that is not a fault.
- A supervisor that does not answer counts as lost after {contact:.0f} s. If its connection broke, and its
  node has not renewed its Lease since, the time is only {cut:.0f} s.
- If more than half of all supervisors do not answer, the cause may be the controller's own network. The
  controller then waits for at most {blackout:.0f} s, and decides by the state of nodes and pods in the API
  server.

The column *slot* shows what happens to the slot of the fault. *Kept*: the ranks restart in the same pod.
*Replaced*: the slot gets a new pod. *Excluded*: the new pod must not use the same node. If the pod has
waited {exclusion:.0f} s for another node (`muster controller --exclusion`), it may use the old node again,
if that node is Ready.

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
        "Each of these is evidence of broken hardware:\n\n",
        f"- a node condition that is True and whose type matches `{_code(CONDITIONS.pattern)}`;\n",
        f"- a Warning Event about the node whose reason matches `{_code(REASONS.pattern)}`.\n",
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
