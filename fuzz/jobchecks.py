"""Invariants on every version of a training job's status."""

from __future__ import annotations

from collections.abc import Mapping

from fuzz.checks import Checker
from fuzz.ranks import AttemptTruth, Ranks
from fuzz.view import View
from muster.embedded.objects import Obj, section

FREE = ("Stopping", "Suspended")
"""Phases that are followed by an attempt without a charge to any budget."""


def restarts(status: Obj) -> int:
    """Returns the number of attempts that ended for a fault of any cause."""
    charged = section(status, "restarts")
    return sum(int(charged.get(cause, 0)) for cause in ("user", "infrastructure", "unknown"))


class AttemptsEndOnce(Checker):
    """Each attempt is followed by the next one, and its end is charged once: to one budget, or to none."""

    name = "an attempt ends once"

    def job(self, name: str, old: Obj, new: Obj) -> None:
        """Compare two versions of a status."""
        if name in self.view.edited:
            return  # by hand: numbers and charges may be lost
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


class RankChecker(Checker):
    """Compares a job's status with its ranks.

    Args:
        view: what the API server holds.
        stale_s: as for all.
        ranks: what really became of attempts.
    """

    def __init__(self, view: View, stale_s: float, ranks: Ranks) -> None:
        super().__init__(view, stale_s)
        self._ranks = ranks

    def truth_of(self, name: str, attempt: int) -> AttemptTruth | None:
        """Returns the true course of an attempt of the job with this name; None if no rank of it ever ran."""
        program = next((each for key, each in self._ranks.programs.items() if key.endswith(f"/{name}")), None)
        return program.attempts.get(attempt) if program is not None else None


class SucceededMeansDone(RankChecker):
    """A job is Succeeded only if its program reported its last step and its ranks, or the launcher, ended well."""

    name = "Succeeded means that the program is done"

    def __init__(self, view: View, stale_s: float, ranks: Ranks) -> None:
        super().__init__(view, stale_s, ranks)
        ranks.listeners.append(self._look)

    def job(self, name: str, old: Obj, new: Obj) -> None:
        """Compare the end with what really happened."""
        if new.get("phase") != "Succeeded" or old.get("phase") == "Succeeded":
            return
        attempt = int(new.get("attempt", 0))
        truth = self.truth_of(name, attempt)
        why = truth.unfinished if truth is not None else "no rank of it ever ran"
        if why:
            self.fail(f"{name} is Succeeded in attempt {attempt}, but {why}")

    def _look(self) -> None:
        """No two directives of an attempt contradict each other."""
        for key, program in self._ranks.programs.items():
            for truth in program.attempts.values():
                if truth.contradiction:
                    self.fail(f"{key}: {truth.contradiction}")


class RecordStays(RankChecker):
    """The record of an attempt does not change while it lasts, and equals what its ranks were directed to do."""

    name = "the record of an attempt never changes"

    def __init__(self, view: View, stale_s: float, ranks: Ranks) -> None:
        super().__init__(view, stale_s, ranks)
        self._known: dict[tuple[str, int], Obj] = {}

    def job(self, name: str, old: Obj, new: Obj) -> None:
        """Compare the record with the first one of its attempt."""
        record = section(new, "run")
        attempt = int(record.get("attempt", -1))
        if not record or attempt != new.get("attempt") or self.view.hands_on:
            return
        facts = {key: record.get(key) for key in ("launcher", "launcherSlot", "nodes", "rankOrder", "masterPort")}
        known = self._known.setdefault((name, attempt), facts)
        if known != facts:
            self.fail(f"{name}: attempt {attempt} was recorded as {known}, and is now {facts}")
        truth = self.truth_of(name, attempt)
        if truth is not None and truth.slots.get(0, record.get("launcherSlot")) != record.get("launcherSlot"):
            said = f"slot {record.get('launcherSlot')}"
            self.fail(f"{name}: the launcher of attempt {attempt} is recorded in {said}, and runs in {truth.slots[0]}")
