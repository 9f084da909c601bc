"""The report of a run, for people and for the controller: the JSON of `-o json` is a `Report`."""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "gputest.muster.dev/v1"
"""Changes if a field changes its meaning or is removed. New fields do not change it."""

Outcome = Literal["passed", "failed", "skipped", "hung", "crashed"]


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU and its figures, whose names end in their units (figures.py)."""

    index: int
    uuid: str
    name: str
    pci_address: str
    memory_bytes: int
    figures: dict[str, float] = {}


class ProbeRun(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one test. `message` says why it was skipped, hung or crashed."""

    name: str
    outcome: Outcome
    duration_s: float
    deadline_s: float
    message: str = ""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One failure. `code` is from codes.py; `gpu` is a UUID, or empty for the node itself."""

    test: str
    code: str
    gpu: str = ""
    message: str
    remedy: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run on one node.

    `passed` is true if the run has no failures. A hang, a crash or a missing GPU is a failure too. `injected` is the
    fault that was injected on purpose, or empty. A report with an injected fault says nothing about the node.
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
