"""What the session and its worker say to each other: a line of JSON each, requests down, events up."""

from __future__ import annotations

import msgspec

from muster.gputest.backend import Device
from muster.gputest.codes import Code


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True):
    """Where the nodes of an all-reduce between nodes meet."""

    address: str
    port: int
    node_rank: int
    nodes: int


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for every test of a run."""

    backend: str
    fault: str = ""
    level: int
    expect_gpus: int | None = None
    scratch: str
    rendezvous: Rendezvous | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Run a test: it repeats its work for about `work_s` (at least once) and is killed after `deadline_s`."""

    test: str
    work_s: float
    deadline_s: float


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The back end is there, with these devices."""

    backend: str
    timing_margin: float
    devices: tuple[Device, ...]
    versions: dict[str, str]


class Said(msgspec.Struct, frozen=True, tag=True):
    """What a GPU (empty: the node) is doing now; empty text when it is through."""

    gpu: str
    text: str


class Measured(msgspec.Struct, frozen=True, tag=True):
    """A figure of a GPU, or of the node."""

    gpu: str
    figure: str
    value: float


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Something is wrong with a GPU, or with the node."""

    code: Code
    gpu: str
    message: str


class Skipped(msgspec.Struct, frozen=True, tag=True):
    """There is nothing to test."""

    reason: str


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The test is over. `error`: what it could not deal with; `code`: why there is no back end to test."""

    error: str = ""
    code: Code | None = None


Event = Opened | Said | Measured | Failed | Skipped | Finished


class RankPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of an all-reduce is to do."""

    setup: Setup
    device: int
    rank: int
    ranks: int
    address: str
    port: int
    count: int
    rounds: int
    timeout_s: float


class RankResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: seconds of each round and the first wrong sum, in words; or why there are none."""

    seconds: tuple[float, ...] = ()
    wrong: str = ""
    error: str = ""
