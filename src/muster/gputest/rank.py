"""One process of an all-reduce (probes/allreduce.py): `python -m muster.gputest.rank PLAN` prints its result."""

from __future__ import annotations

import os
import sys

import msgspec
import numpy as np
from numpy.typing import NDArray

from muster.gputest.backends import open_backend
from muster.gputest.wire import RankPlan, RankResult

_PERIOD, _PERIODS = 251, 1 << 16
"""A prime, so that elements do not repeat at powers of two. Sums of up to 5,000 ranks are exact in fp32."""

PRECISION = "fp32"


def main() -> None:
    """Run and print the result, also after an error. Other output goes to standard error: NCCL prints even at exit."""
    plan = msgspec.json.decode(sys.argv[1], type=RankPlan)
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        try:
            result = _run(plan)
        except Exception as error:  # an error of a library is the result of this process
            result = RankResult(error=f"{type(error).__name__}: {error}")
        output.write(msgspec.json.encode(result) + b"\n")


def _run(plan: RankPlan) -> RankResult:
    backend = open_backend(plan.setup.backend, plan.setup.fault)
    place = np.arange(_PERIOD * _PERIODS, dtype=np.float32) % _PERIOD
    communicator = backend.join(plan.device, plan.rank, plan.ranks, plan.address, plan.port, plan.timeout_s)
    try:
        summed = backend.upload(plan.device, np.resize(place + np.float32(plan.rank), plan.count), PRECISION)
        backend.reduce(plan.device, communicator, summed)
        problem = _wrong(backend.download(summed), place, plan)
        # The values of these sums do not matter, and stay finite.
        seconds = [
            backend.timed([plan.device], lambda: backend.reduce(plan.device, communicator, summed))
            for _ in range(plan.rounds + 1)
        ]
        return RankResult(seconds=tuple(seconds[1:]), wrong=problem)
    finally:
        communicator.close()


def _wrong(found: NDArray[np.float32], place: NDArray[np.float32], plan: RankPlan) -> str:
    """Return which sums are wrong, "" if all are right. Works in parts, because ranks share the host's memory."""
    expected = place * np.float32(plan.ranks) + np.float32(plan.ranks * (plan.ranks - 1) // 2)
    number, first = 0, -1
    for start in range(0, len(found), len(place)):
        part = found[start : start + len(place)]
        wrong = part != expected[: len(part)]
        if wrong.any():
            number += int(np.count_nonzero(wrong))
            first = start + int(np.argmax(wrong)) if first < 0 else first
    if first < 0:
        return ""
    return (
        f"{number} of {plan.count} sums wrong at rank {plan.rank}, the first is element {first}: "
        f"{float(expected[first % len(place)]):g} expected, {float(found[first])!r} computed"
    )


if __name__ == "__main__":
    main()
