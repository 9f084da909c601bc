from __future__ import annotations

import msgspec

from muster.network.uplink.cache import Owner, UplinkCache
from muster.network.uplink.decide import decide
from muster.network.uplink.page import UplinkPage, page_of
from muster.network.uplink.settings import Settings
from muster.network.uplink.wire import Applied, Pair, PodDemand, Report

M = 10**6
LINE = Pair(100 * M, 100 * M)


def page(cache: UplinkCache) -> UplinkPage:
    views, records = cache.views()
    snapshot = cache.snapshot(views, 0.0)
    plan = decide(snapshot)
    for new in plan.nodes:
        cache.sent(records[new.node], cache.rates(records[new.node], new, 1, "e"), 0.0)
    found = page_of(cache, snapshot, plan, "e", 0.0)
    return msgspec.json.decode(msgspec.json.encode(found), type=UplinkPage)


def test_page_shows_demand_rate_and_why_each_subject_waits() -> None:
    cache = UplinkCache(Settings(budget=Pair(100 * M, 100 * M), weights={"a": 3}), 0.0)
    for uid, team, priority in (("high", "a", 10), ("low", "a", 0), ("other", "b", 0)):
        cache.pod_changed(uid, Owner("n1", "space", f"pod-{uid}", f"job-{uid}", team, priority))
    cache.node_changed("n1", True, 0.0)
    record = cache.connected("n1")
    cache.applied(record, Applied("", 0, Pair(0, 0)), "e", 0.0)
    wants = {"high": 60 * M, "low": 0, "other": 0}
    pods = {uid: PodDemand(use, 0, use or LINE.in_bps, 0) for uid, use in wants.items()}
    cache.reported(record, Report(1, LINE, pods), 0.0)
    cache.node_changed("n2", True, 0.0)
    cache.warming = False
    cache.settings = Settings(budget=Pair(200 * M, 200 * M), static=Pair(100 * M, 100 * M), weights={"a": 3})
    found = page(cache)
    rows = {row.subject: row for row in found.subjects}
    assert (found.nodes, found.connected, found.silent) == (2, 1, ("n2",))
    assert (rows["high"].rate.in_bps, rows["high"].wants.in_bps, rows["high"].waits) == (66 * M, 66 * M, ("", ""))
    assert (rows["low"].rate.in_bps, rows["low"].waits) == (9 * M, ("Priority", ""))
    assert (rows["other"].rate.in_bps, rows["other"].waits) == (25 * M, ("TeamShare", ""))
    assert (rows["low"].namespace, rows["low"].pod, rows["low"].job) == ("space", "pod-low", "job-low")
    assert [(team.team, team.weight, team.rate.in_bps) for team in found.teams] == [("a", 3, 75 * M), ("b", 1, 25 * M)]
