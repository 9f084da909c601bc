"""One process of an all-reduce (probes/allreduce.py): `python -m muster.gputest.rank PLAN` prints its result."""

from __future__ import annotations

import sys

import msgspec
import numpy as np

from muster.gputest.backends import open_backend
from muster.gputest.wire import RankPlan, RankResult

_PERIOD = 251
"""A prime, so that no element repeats at a power of two; sums of up to 60,000 ranks are exact in fp32."""

PRECISION = "fp32"


def main() -> None:
    """Run, whatever happens say what happened."""
    plan = msgspec.json.decode(sys.argv[1], type=RankPlan)
    try:
        result = _run(plan)
    except Exception as error:  # a library's error is this process's result
        result = RankResult(error=f"{type(error).__name__}: {error}")
    print(msgspec.json.encode(result).decode(), flush=True)


def _run(plan: RankPlan) -> RankResult:
    backend = open_backend(plan.setup.backend, plan.setup.fault)
    place = np.arange(plan.count) % _PERIOD
    mine = (place + plan.rank).astype(np.float64)
    expected = place * plan.ranks + plan.ranks * (plan.ranks - 1) // 2
    communicator = backend.join(plan.device, plan.rank, plan.ranks, plan.address, plan.port, plan.timeout_s)
    try:
        summed = backend.upload(plan.device, mine, PRECISION)
        backend.reduce(plan.device, communicator, summed)
        found = backend.download(summed)
        wrong = found != expected
        said = ""
        if wrong.any():
            first = int(np.argmax(wrong))
            said = (
                f"{int(wrong.sum())} of {plan.count} sums wrong at rank {plan.rank}, the first is element {first}: "
                f"{expected[first]} expected, {float(found[first])!r} computed"
            )
        nothing = backend.upload(plan.device, np.zeros(plan.count), PRECISION)
        seconds = [
            backend.timed([plan.device], lambda: backend.reduce(plan.device, communicator, nothing))
            for _ in range(plan.rounds + 1)
        ]
        return RankResult(seconds=tuple(seconds[1:]), wrong=said)
    finally:
        communicator.close()


if __name__ == "__main__":
    main()
