"""The messages between the session and its worker, as lines of JSON: requests in, events out."""

from __future__ import annotations

import msgspec

from muster.gputest.backend import Device
from muster.gputest.codes import Code


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True):
    """The meeting point of an all-reduce between nodes."""

    address: str
    port: int
    node_rank: int
    nodes: int


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of all tests of a run."""

    backend: str
    fault: str = ""
    level: int
    expect_gpus: int | None = None
    scratch: str
    rendezvous: Rendezvous | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request to run a test, which repeats its work for about `work_s` and is killed after `deadline_s`."""

    test: str
    work_s: float
    deadline_s: float


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The back end was opened, with these devices."""

    backend: str
    timing_margin: float
    devices: tuple[Device, ...]
    versions: dict[str, str]


class Said(msgspec.Struct, frozen=True, tag=True):
    """The current activity. `gpu` is empty if the activity is of the node. `text` is empty when it has finished."""

    gpu: str
    text: str


class Measured(msgspec.Struct, frozen=True, tag=True):
    """A figure of a GPU, or of the node."""

    gpu: str
    figure: str
    value: float


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A failure of a GPU, or of the node."""

    code: Code
    gpu: str
    message: str


class Skipped(msgspec.Struct, frozen=True, tag=True):
    """There is nothing to test."""

    reason: str


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The test has ended. `error`: an unexpected error; `code`: why the back end could not be opened."""

    error: str = ""
    code: Code | None = None


Event = Opened | Said | Measured | Failed | Skipped | Finished


class RankPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The task of one process of an all-reduce."""

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
    """The result of one process of an all-reduce.

    It holds the seconds of each round and a text about the first wrong sum (empty if all sums are right), or the error.
    """

    seconds: tuple[float, ...] = ()
    wrong: str = ""
    error: str = ""
