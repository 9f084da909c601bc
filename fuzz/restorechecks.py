"""Invariants on the checkpoints from which attempts train."""

from __future__ import annotations

from fuzz.jobchecks import RankChecker
from fuzz.ranks import Ranks, is_damaged
from fuzz.view import View
from muster.embedded.objects import Obj, items


class TrainsFromOneGoodCheckpoint(RankChecker):
    """All nodes of an attempt train from one checkpoint, which was confirmed and which none of them found damaged.

    Args:
        view: what the API server holds.
        stale_s: as for all.
        ranks: what really became of attempts.
    """

    name = "an attempt trains from one good checkpoint"

    def __init__(self, view: View, stale_s: float, ranks: Ranks) -> None:
        super().__init__(view, stale_s, ranks)
        self._confirmed: dict[str, set[str]] = {}
        self._quarantined: dict[str, set[str]] = {}

    def job(self, name: str, old: Obj, new: Obj) -> None:
        """Note which checkpoints are confirmed, and look at what the attempt begins from."""
        self._confirmed.setdefault(name, set()).update(each["path"] for each in items(new, "checkpoints"))
        bad = {each["path"] for each in items(new, "quarantinedCheckpoints")}
        listed = {each["path"] for each in items(new, "checkpoints")}
        if bad & listed:
            self.fail(f"{name} lists {sorted(bad & listed)} as confirmed and as quarantined")
        begins = new.get("phase") == "Running" and old.get("phase") != "Running"
        handed = new.get("run", {}).get("checkpoint", {}).get("path", "")
        if begins and handed in bad:
            self.fail(f"{name}: attempt {new.get('attempt')} begins from {handed}, which is quarantined")

    def second(self) -> None:
        """Compare the nodes of each attempt."""
        for key, program in self._ranks.programs.items():
            name = key.partition("/")[2]
            for number, truth in program.attempts.items():
                found = set(truth.restored.values())
                if len(found) > 1:
                    self.fail(f"{key}: nodes of attempt {number} train from {sorted(found)}")
                for path, step in found:
                    if path not in self._confirmed.get(name, ()):
                        self.fail(f"{key}: attempt {number} trains from {path}, which was never confirmed")
                    if is_damaged(key, step):
                        self.fail(f"{key}: attempt {number} trains from {path}, which is damaged")
