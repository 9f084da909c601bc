"""What must never be, checked on every version of a training job's status."""

from __future__ import annotations

from collections.abc import Mapping

from muster.embedded.objects import Obj, section
from muster.sim.fuzz.checks import Checker
from muster.sim.fuzz.view import View

FREE = ("Stopping", "Suspended")
"""Phases from which an attempt follows that nobody is charged for."""


def restarts(status: Obj) -> int:
    """How many attempts ended for a fault, whosever it was."""
    charged = section(status, "restarts")
    return sum(int(charged.get(cause, 0)) for cause in ("user", "infrastructure", "unknown"))


class AttemptsEndOnce(Checker):
    """Each attempt is followed by the next one, and its end is charged once: to one budget, or to nobody."""

    name = "an attempt ends once"

    def job(self, name: str, old: Obj, new: Obj) -> None:
        """Compare two versions of a status."""
        before, after = int(old.get("attempt", 0)), int(new.get("attempt", 0))
        charged = restarts(new) - restarts(old)
        if not before <= after <= before + 1:
            self.fail(f"{name} went from attempt {before} to {after}")
        elif after == before and charged:
            self.fail(f"{name} is charged {charged} times within attempt {after}")
        elif after > before > 0 and charged != 1 and not (charged == 0 and old.get("phase") in FREE):
            self.fail(f"{name} is charged {charged} times for the end of attempt {before} in {old.get('phase')}")


class NoChargeForWhatTheUserDidNot(Checker):
    """The program's own budget is charged for ranks that failed by themselves, never for a node or the network.

    Args:
        view: what the API server holds.
        stale_s: as for all.
        failed: how often ranks of a job failed by themselves so far, by name.
    """

    name = "no user charge for a node fault"

    def __init__(self, view: View, stale_s: float, failed: Mapping[str, int]) -> None:
        super().__init__(view, stale_s)
        self._failed = failed

    def job(self, name: str, old: Obj, new: Obj) -> None:
        """Look who is charged."""
        charged = int(section(new, "restarts").get("user", 0))
        if charged > self._failed[name]:
            faults = [f"{one['rule']} on {one.get('node')}" for one in new.get("faults", ())]
            self.fail(f"{name}: {charged} faults are the program's, {self._failed[name]} were: {', '.join(faults)}")


class NoJobFails(Checker):
    """A job whose budgets suffice ends well: what fails under it is mended."""

    name = "no job fails for what is mended"

    def job(self, name: str, old: Obj, new: Obj) -> None:
        """Look how it ended."""
        if new.get("phase") == "Failed":
            self.fail(f"{name} failed: {new.get('message')}")
