"""Faults of all kinds in a replay, with published frequencies, and how broken nodes are handled."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import msgspec

from muster.sim.replay.failing import HOUR_S, Stage
from muster.sim.replay.run import Run

Kind = Literal["program", "announced", "wearing", "said", "silent", "crash"]
"""Visible symptoms of a fault.

`program`: the job itself is faulty, and the node is well. `announced`: the cloud announces that the node will stop.
    `wearing`: the job continues until it suddenly fails. `said`: the fault ends programs, and the kernel log or a
    counter shows it. `silent`: the fault ends programs, and nothing shows it. `crash`: the node stops.
"""


class Cause(msgspec.Struct, frozen=True):
    """One cause of interruptions, and their number in `CAUSES_DAYS` days on `CAUSES_NODES` nodes."""

    name: str
    count: int
    kind: Kind


CAUSES_NODES, CAUSES_DAYS = 2048, 54.0
CAUSES = (
    Cause("faulty GPU", 148, "said"),
    Cause("GPU memory (HBM3)", 72, "said"),
    Cause("software", 54, "program"),
    Cause("switch or cable", 35, "said"),
    Cause("host maintenance", 32, "announced"),
    Cause("GPU SRAM", 19, "said"),
    Cause("GPU system processor", 17, "said"),
    Cause("NIC", 7, "said"),
    Cause("collectives time out", 7, "silent"),
    Cause("silent data corruption", 6, "silent"),
    Cause("GPU temperature and sensors", 6, "wearing"),
    Cause("SSD", 3, "crash"),
    Cause("power supply", 3, "crash"),
    Cause("chassis", 2, "crash"),
    Cause("I/O board", 2, "crash"),
    Cause("dependency", 2, "program"),
    Cause("CPU", 2, "crash"),
    Cause("host memory", 2, "crash"),
)
"""The 419 unexpected interruptions in 54 days on 16,384 GPUs (The Llama 3 Herd of Models, 2024, table 5). The paper
does not have a `kind`; we assigned it."""
CAUSES_MTBF_HOURS = CAUSES_NODES * CAUSES_DAYS * 24 / sum(cause.count for cause in CAUSES)
"""Mean time between faults of one node: 6,334 h."""

_REBOOT_S = 900.0
_REPAIR_HOURS = 24.0
"""Mean number of hours."""


class Care(msgspec.Struct, frozen=True):
    """How broken nodes are handled: who takes them out of use, and how they return.

    Attributes:
        acts: whether a finding takes a node out of use automatically, after `acts_after_s`. Otherwise, and for faults
            without findings, an operator does it after `person_hours` on average.
        saves: whether jobs save their work before they leave a node that still works.
        tests: whether a node must pass tests before it returns. Otherwise it returns after its reboot.
        reboot_mends: the share of automatically handled nodes that are well after a reboot. The others need a repair,
            as do all nodes that an operator handles.
    """

    name: str
    acts: bool = False
    acts_after_s: float = 0.0
    saves: bool = False
    tests: bool = False
    person_hours: float = 2.0
    reboot_mends: float = 0.7


NO_CARE = Care("off")
CORDON_AND_EVICT = Care("cordon and evict", acts=True, acts_after_s=0.4)
"""Handling as in NVSentinel, at its published rate of 2.5 nodes a second. A node with a finding is cordoned, its pods
are evicted, the node is rebooted and returns to use."""
MUSTER = Care("Muster", acts=True, acts_after_s=1.0, saves=True, tests=True)

RELAPSE_MINUTES = 10.0
"""Mean time of work after which a broken GPU ends a program."""
SILENT_RELAPSE_MINUTES = 60.0
WEARS_OUT_HOURS = 2.0
NOTICE_MINUTES = 15.0
"""Time between the announcement and the stop: Azure's Scheduled Events announce reboots 15 minutes before."""


class Faults:
    """A source of faults of all kinds. With every `Care`, the same faults occur at the same times."""

    def __init__(
        self,
        stage: Stage,
        nodes: Sequence[str],
        seed: int,
        *,
        mtbf_hours: float,
        care: Care,
        causes: Sequence[Cause] = CAUSES,
    ) -> None:
        self._stage, self._nodes, self._care, self._causes = stage, nodes, care, causes
        self._mtbf_hours = mtbf_hours
        self._coming = random.Random(f"faults {seed}")
        self._after = random.Random(f"after faults {seed}")
        self._broken: dict[str, Kind] = {}
        self._out: set[str] = set()
        self.failures = 0

    def begin(self) -> None:
        """Schedule the first fault."""
        self._stage.at(self._stage.now + self._until_next(), self._strike)

    def going(self, run: Run, since_s: float) -> None:
        """If the job has a broken node, schedule its next failure."""
        for name in run.nodes.values():
            if self._broken.get(name) in ("said", "silent"):
                self._relapse(name, run, since_s)

    def _until_next(self) -> float:
        return self._coming.expovariate(len(self._nodes) / (self._mtbf_hours * HOUR_S))

    def _strike(self) -> None:
        name = self._coming.choice(self._nodes)
        (cause,) = self._coming.choices(self._causes, [cause.count for cause in self._causes])
        if name not in self._out and name not in self._broken:
            self.failures += 1
            self._break(name, cause.kind)
        self._stage.at(self._stage.now + self._until_next(), self._strike)

    def _break(self, name: str, kind: Kind) -> None:
        stage, care = self._stage, self._care
        if kind == "program":
            stage.stop_work(name)
            return
        self._broken[name] = kind
        if kind == "crash":
            self._take(name, saved=False)
            return
        if kind in ("said", "silent"):
            stage.stop_work(name)
        else:
            in_s = NOTICE_MINUTES * 60 if kind == "announced" else self._mean_s(WEARS_OUT_HOURS)
            stage.at(stage.now + in_s, lambda: self._crash(name))
        if care.acts and kind != "silent":
            still_works = kind in ("announced", "wearing")
            stage.at(stage.now + care.acts_after_s, lambda: self._take(name, saved=still_works and care.saves))
        elif kind != "announced":
            stage.at(stage.now + self._mean_s(care.person_hours), lambda: self._take(name, saved=False))

    def _crash(self, name: str) -> None:
        if self._broken.get(name) in ("announced", "wearing"):
            self._take(name, saved=False)

    def _relapse(self, name: str, run: Run, since_s: float) -> None:
        minutes = RELAPSE_MINUTES if self._broken[name] == "said" else SILENT_RELAPSE_MINUTES
        attempt = run.attempt

        def again() -> None:
            if name in self._broken and name not in self._out and run.attempt == attempt and not run.ended:
                self._stage.stop_work(name)
                if self._care.acts and self._broken[name] == "said":
                    self._stage.at(self._stage.now + self._care.acts_after_s, lambda: self._take(name, saved=False))

        self._stage.at(since_s + self._mean_s(minutes / 60), again)

    def _take(self, name: str, saved: bool) -> None:
        """Take a node out of use. It returns after a reboot or a repair; a reboot may not have removed the fault."""
        if name in self._out or name not in self._broken:
            return
        self._out.add(name)
        self._stage.lose_node(name, saved)
        kind, care, now = self._broken[name], self._care, self._stage.now
        rebooted_at = now + _REBOOT_S
        seen = care.acts and kind != "silent"
        if kind == "announced" or (seen and self._after.random() < care.reboot_mends):
            self._stage.at(rebooted_at, lambda: self._back(name))
        elif care.acts and kind in ("said", "wearing") and not care.tests:
            self._stage.at(rebooted_at, lambda: self._back_unmended(name))
        else:
            self._stage.at(now + self._mean_s(_REPAIR_HOURS), lambda: self._back(name))

    def _back(self, name: str) -> None:
        del self._broken[name]
        self._out.discard(name)
        self._stage.return_node(name)

    def _back_unmended(self, name: str) -> None:
        """Return a node that is still broken. The fault has effects again when the node has work."""
        self._out.discard(name)
        self._stage.return_node(name)

    def _mean_s(self, hours: float) -> float:
        return self._after.expovariate(1 / (hours * HOUR_S))
