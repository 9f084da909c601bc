"""Estimates what a subject would use without a limit. A throttled subject's demand is unknown: it probes upward."""

from __future__ import annotations

from typing import Final

IDLE_S: Final = 10.0
"""A subject keeps a rate of its own this long after its last traffic above the floor."""


def is_throttled(used_bps: int, rate_bps: int) -> bool:
    """Returns whether the limit holds the subject back: it uses 95% or more. A rate of 0 is not a limit."""
    return rate_bps > 0 and used_bps * 20 >= rate_bps * 19


def wanted(used_bps: int, asked_bps: int, rate_bps: int, line_bps: int, before_bps: int) -> int:
    """Return the demand that the allocator uses, in bits/s. It is never above the line rate.

    A throttled subject wants the line rate: max-min fairness then gives it at most its fair share. Any other wants a
    tenth more than it uses, so that growth shows as throttling. Small changes keep the demand, so that rates do not
    flap. (Google's BwE, SIGCOMM 2015, section 4.2, also adds a headroom to measured use.)

    Args:
        used_bps: what it used.
        asked_bps: the agent's estimate, see `wire.PodDemand`.
        rate_bps: the limit while that was measured; 0 without one.
        line_bps: the line rate; 0 if it is unknown.
        before_bps: the demand that the allocator used until now.
    """
    if asked_bps * 10 > used_bps * 11 or is_throttled(used_bps, rate_bps):
        want = max(line_bps, used_bps)
    elif used_bps * 10 >= before_bps * 7 and used_bps * 20 <= before_bps * 19:
        want = before_bps
    else:
        want = used_bps * 11 // 10
    return min(want, line_bps) if line_bps else want


def level(wants: list[int], capacity: int) -> int:
    """Return the highest limit for all with which the demands share the capacity: sum(min(want, limit)) fits.

    If all demands fit, that is the largest demand. This is max-min fairness without weights: each pass satisfies the
    demands below the equal part, and divides what they leave. Takes linear time in practice.
    """
    left = wants
    total = sum(left)
    if total <= capacity:
        return max(left, default=0)
    while left:
        part = capacity // len(left)
        over = [want for want in left if want > part]
        if len(over) == len(left):
            return max(0, part)
        above = sum(over)
        capacity -= total - above
        left, total = over, above
    return max(wants)
