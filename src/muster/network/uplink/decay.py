"""What a node's limits become after their lease has ended. Agents enforce this, and the hub counts with it.

High limits fall to the static share first, and low limits rise to it only afterwards. So the sum over all nodes stays
within the budget, although the nodes do not hear of each other: all leases end within one lease's length.
"""

from __future__ import annotations

from collections.abc import Collection

from muster.network.uplink.wire import Pair, Rates


def decayed_total(last_bps: int, static_bps: int, past_s: float, valid_s: float, decay_s: float) -> int:
    """Return a node's limit in bits/s in one direction, `past_s` after the end of its lease.

    Args:
        last_bps: the limit of the lease.
        static_bps: the static share.
        past_s: seconds since the lease ended; 0 or less while it is valid.
        valid_s: the length of the lease.
        decay_s: the time in which a higher limit falls to the static share.
    """
    if past_s <= 0:
        return last_bps
    if last_bps > static_bps:
        if past_s >= decay_s:
            return static_bps
        return last_bps - int((last_bps - static_bps) * past_s / decay_s)
    return static_bps if past_s >= decay_s + valid_s else last_bps


def limits(rates: Rates, past_s: float, present: Collection[str]) -> tuple[dict[str, Pair], Pair]:
    """Return the limit of each subject and of the rest, `past_s` after the end of the lease of `rates`.

    While a limit falls, all subjects keep their proportions. Once low limits may rise, the subjects that are `present`
    and the rest have equal parts of the static share.
    """
    if past_s <= 0:
        return rates.pods, rates.rest
    if past_s >= rates.decay_s + rates.valid_s:
        return static_limits(rates.static, present)
    last = rates.total
    total = Pair(
        *(
            decayed_total(before, static, past_s, rates.valid_s, rates.decay_s)
            for before, static in zip(last, rates.static, strict=True)
        )
    )
    pods = {subject: _scaled(rate, total, last) for subject, rate in rates.pods.items()}
    return pods, _scaled(rates.rest, total, last)


def static_limits(static: Pair, present: Collection[str]) -> tuple[dict[str, Pair], Pair]:
    """Return equal parts of the static share for each subject, and one for the rest."""
    part = Pair(*(each // (len(present) + 1) for each in static))
    return dict.fromkeys(present, part), part


def _scaled(rate: Pair, total: Pair, last: Pair) -> Pair:
    return Pair(*(each * new // old if old else 0 for each, new, old in zip(rate, total, last, strict=True)))
