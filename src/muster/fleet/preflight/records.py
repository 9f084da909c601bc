"""Turns a test's result into the record to write, with a time on the controller's clock and a check for lost GPUs.

A test ends by its node's clock; everything else uses the controller's clock. So the end is limited: not later than now,
and not before the pod was created. Otherwise a pass from before a fault could seem to be later than the fault.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from msgspec.structs import replace

from muster.api.preflight import FAILURES_MAX, PreflightFailure, PreflightSpec
from muster.fleet.preflight.snapshot import AGENT_DRIVER, PreflightNode, TestView
from muster.gputest.codes import Code

GPUS: Final = "gpus"
"""Key in a record's versions: the most GPUs that a test of the node has seen. If GPUs are removed on purpose, the
operator deletes the record."""
ENDED: Final = "ended"
"""Key in a record's versions: when the test ended by its node's clock, if that clock is ahead."""


def accepted(test: TestView, said: PreflightSpec, node: PreflightNode, now: float) -> PreflightSpec | None:
    """Return the record to write; None if it was written already, by this controller or a previous one.

    Args:
        test: the test's pod.
        said: its result.
        node: the tested node.
        now: seconds since the epoch.
    """
    ended = said.time.timestamp()
    text = said.time.astimezone(UTC).isoformat()
    known = node.boot_record
    time = max(ended, test.made_at)
    if known is not None and (known.time.timestamp() >= time or known.versions.get(ENDED) == text):
        return None
    versions = dict(said.versions)
    if time > now:
        time = now
        versions[ENDED] = text
    if node.agent_driver:
        versions[AGENT_DRIVER] = node.agent_driver
    return _counted(replace(said, time=datetime.fromtimestamp(time, UTC), versions=versions), node)


def _counted(said: PreflightSpec, node: PreflightNode) -> PreflightSpec:
    """Fail a pass with fewer GPUs than before: a test gets only the GPUs that its node announces."""
    before, found = _gpus_before(node), len(said.figures)
    if not max(before, found):
        return said
    said = replace(said, versions={**said.versions, GPUS: str(max(before, found))})
    if not said.passed or not found or found >= before:
        return said
    message = f"{found} GPUs were tested, and the node had {before}"
    failure = PreflightFailure(test="visibility", code=Code.GPU_COUNT.value, message=message)
    return replace(said, passed=False, failures=(*said.failures[: FAILURES_MAX - 1], failure))


def _gpus_before(node: PreflightNode) -> int:
    record = node.record
    if record is None or record.node_uid != node.identity.node_uid:
        return 0
    text = record.versions.get(GPUS, "")
    return int(text) if text.isdecimal() and len(text) < 4 else 0
