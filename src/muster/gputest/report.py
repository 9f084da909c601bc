"""What a run says, for people and for the controller: the JSON of `-o json` is a `Report`."""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "gputest.muster.dev/v1"
"""Changes when a field changes its meaning or goes; fields may be added under the same name."""

Outcome = Literal["passed", "failed", "skipped", "hung", "crashed"]


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU and what was measured on it; the names of figures end in their units (figures.py)."""

    index: int
    uuid: str
    name: str
    pci_address: str
    memory_bytes: int
    figures: dict[str, float] = {}


class ProbeRun(msgspec.Struct, frozen=True, kw_only=True):
    """How one test ended. `message` says why it was skipped, hung or crashed."""

    name: str
    outcome: Outcome
    duration_s: float
    deadline_s: float
    message: str = ""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One thing wrong: `code` is one of codes.py's, `gpu` a UUID, or empty where it is the node's."""

    test: str
    code: str
    gpu: str = ""
    message: str
    remedy: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run on one node. `passed` is false where anything failed, hung or crashed, or was not there to be tested.

    `injected` names the fault of a drill: such a report says nothing about the node.
    """

    schema: str = SCHEMA
    node: str
    level: int
    backend: str
    passed: bool
    injected: str = ""
    started: str
    duration_s: float
    budget_s: float
    versions: dict[str, str]
    gpus: tuple[Gpu, ...]
    node_figures: dict[str, float]
    tests: tuple[ProbeRun, ...]
    failures: tuple[Failure, ...]
