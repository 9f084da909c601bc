"""Tests every CPU core: the result must be right, and the speed similar to other cores."""

from __future__ import annotations

import os
import time
from hashlib import sha256

from muster.gputest.codes import Code
from muster.gputest.context import Context

_ROUNDS = 200
_BLOCK = bytes(range(256)) * 32
# SHA-256 over each digest and the block, 200 times, starting without a digest; computed with coreutils' sha256sum.
_EXPECTED = "6cfe6dbeb0736821cc0da16cdafd67743cb233a2be56f2986be0e7f8c652318d"
_MB = 1e6


def run(context: Context) -> None:
    """Test each core that this process may use, one after the other, and repeat while there is time."""
    cores = sorted(os.sched_getaffinity(0))
    rates: dict[int, float] = {}
    try:
        first = True
        while first or context.time_left():
            first = False
            for core in cores:
                context.say(None, f"core {core}")
                os.sched_setaffinity(0, {core})
                rate = _hash(context, core)
                rates[core] = max(rate, rates.get(core, 0))
    finally:
        os.sched_setaffinity(0, cores)
    context.figure(None, "cpu_slowest_core_mb_per_s", min(rates.values()))


def _hash(context: Context, core: int) -> float:
    began = time.thread_time()
    digest = b""
    for _ in range(_ROUNDS):
        digest = sha256(digest + _BLOCK).digest()
    took_s = max(time.thread_time() - began, 1e-9)
    if digest.hex() != _EXPECTED:
        context.fail(None, Code.WRONG_DIGEST, f"core {core} computed {digest.hex()} instead of {_EXPECTED}")
    return _ROUNDS * len(_BLOCK) / _MB / took_s
