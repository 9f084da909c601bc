"""What is unused: rules followed transitively, histograms as families, broad queries, jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from muster.telemetry.usage.findings import Findings, add_rules, find
from muster.telemetry.usage.inputs.rules import Rule
from muster.telemetry.usage.inventory import Inventory
from muster.telemetry.usage.ledger import Ledger
from muster.telemetry.usage.pools import Pool
from muster.telemetry.usage.proposal.droprules import propose
from muster.telemetry.usage.query import read_query


def inventory(metrics: Mapping[str, Mapping[str, int]], **types: str) -> Inventory:
    found = Inventory(types=types, sample_bytes=2.0)
    for name, jobs in metrics.items():
        for job, series in jobs.items():
            found.add({"__name__": name, "job": job}, series)
            found.pools.setdefault(job, Pool(job, {job}, 10.0))
    return found


def record(name: str, expr: str) -> Rule:
    return Rule(name, expr, True, "g", f"rule {name}")


def alert(expr: str, *templates: str) -> Rule:
    return Rule("A", expr, False, "g", "alert A", templates)


def examine(scraped: Inventory, queries: Iterable[str] = (), rules: Iterable[Rule] = ()) -> Findings:
    rules = list(rules)
    recorded = {each.name for each in rules if each.records}
    ledger = Ledger(scraped.possible_names(), recorded, scraped.possible_parts())
    for n, text in enumerate(queries):
        ledger.add(read_query(text), f"panel {n}", text)
    return find(scraped, ledger, add_rules(ledger, rules), recorded)


def names(scraped: Inventory, queries: Iterable[str] = (), rules: Iterable[Rule] = ()) -> set[str]:
    return {each.name for each in examine(scraped, queries, rules).unused}


ABC = inventory({"a": {"x": 1}, "b": {"x": 2}, "c": {"x": 30}})


def test_metrics_that_no_query_selects_are_unused() -> None:
    findings = examine(ABC, ["rate(a[5m])"])
    assert [(each.name, each.job, each.series) for each in findings.unused] == [("c", "x", 30), ("b", "x", 2)]
    assert findings.unused[0].samples_per_s == 3.0
    assert findings.unused[0].bytes_per_day == 3.0 * 86400 * 2.0
    assert findings.used == 1


def test_alerts_and_queries_in_their_templates_use_metrics() -> None:
    assert names(ABC, [], [alert("a > 0", "sum(b)")]) == {"c"}


def test_used_recording_rule_needs_its_inputs_transitively() -> None:
    chain = [record("r2", "r1 + 1"), record("r1", "sum(a)")]
    findings = examine(ABC, ["r2"], chain)
    assert {each.name for each in findings.unused} == {"b", "c"}
    assert (findings.unused_rules, findings.only_unused_rules) == ([], [])


def test_unused_recording_rule_is_reported_and_its_inputs_are_kept() -> None:
    findings = examine(ABC, ["c"], [record("r2", "r1 + b"), record("r1", "sum(a)")])
    assert [each.name for each in findings.unused_rules] == ["r2", "r1"]
    assert findings.unused == []
    assert {each.name for each in findings.only_unused_rules} == {"a", "b"}
    assert {each.name for each in findings.with_unused_rules_deleted().unused} == {"a", "b"}


def test_rules_that_only_use_each_other_are_unused() -> None:
    findings = examine(ABC, [], [record("r1", "r2"), record("r2", "r1 + a")])
    assert {each.name for each in findings.unused_rules} == {"r1", "r2"}


def test_federation_of_recorded_metrics_uses_them() -> None:
    findings = examine(ABC, ['{__name__=~"team:.*"}'], [record("team:r", "a")])
    assert ({each.name for each in findings.unused}, findings.unused_rules) == ({"b", "c"}, [])


def test_several_rules_that_write_one_metric_are_all_followed() -> None:
    findings = examine(ABC, ["r"], [record("r", "a"), record("r", "b")])
    assert ({each.name for each in findings.unused}, findings.only_unused_rules) == ({"c"}, [])


def test_recorded_series_are_never_dropped() -> None:
    assert names(inventory({"r": {"x": 1}}), [], [record("r", "vector(1)")]) == set()


def test_metric_can_be_unused_in_one_job_alone() -> None:
    scraped = inventory({"a": {"x": 1, "y": 2, "": 3}})
    findings = examine(scraped, ['a{job="x"}'])
    assert {(each.job, each.everywhere) for each in findings.unused} == {("y", False), ("", False)}
    assert {(each.job, each.everywhere) for each in examine(scraped, []).unused} == {
        ("x", True),
        ("y", True),
        ("", True),
    }


@pytest.mark.parametrize("name", ["a", '{__name__=~"a|b"}'])
def test_metric_that_is_read_in_an_absent_job_is_dropped_by_job(name: str) -> None:
    query = name.replace("}", ',job="absent"}') if "{" in name else f'{name}{{job="absent"}}'
    for findings in (examine(ABC, [query]), examine(ABC, [], [record("r", query)])):
        everywhere = {each.name: each.everywhere for each in findings.unused}
        assert (everywhere["a"], everywhere["c"]) == (False, True)


@pytest.mark.parametrize(
    ("query", "unused"),
    [
        ("rate(h_count[5m])", {"h_bucket"}),
        ("h_sum", {"h_bucket"}),
        ("h_bucket", set()),
        ("histogram_quantile(0.9, rate(h[5m]))", {"h_bucket"}),  # a native histogram beside the classic one
        ("s_sum", {"h", "h_bucket", "h_sum", "h_count", "s"}),
        ('s{quantile="0.5"}', {"h", "h_bucket", "h_sum", "h_count"}),
        ("vector(1)", {"h", "h_bucket", "h_sum", "h_count", "s", "s_sum", "s_count"}),
    ],
)
def test_parts_of_a_histogram_or_summary_stay_together(query: str, unused: set[str]) -> None:
    members = ("h", "h_bucket", "h_sum", "h_count", "s", "s_sum", "s_count")
    scraped = inventory({name: {"x": 1} for name in members}, h="histogram", s="summary")
    found = names(scraped, [query])
    assert found == unused | ({"s", "s_sum", "s_count"} if query.startswith(("rate", "h")) else set())


def test_histogram_of_an_unused_rule_stays_together() -> None:
    scraped = inventory({f"h_{part}": {"x": 1} for part in ("bucket", "sum", "count")})
    findings = examine(scraped, [], [record("r", "rate(h_count[5m])")])
    assert {each.name for each in findings.unused} == {"h_bucket"}
    assert {each.name for each in findings.only_unused_rules} == {"h_sum", "h_count"}


@pytest.mark.parametrize(
    ("query", "types"),
    [
        ("h_bucket", {"h": "histogram"}),
        ("rate(h_sum[5m]) / rate(h_count[5m])", {"h": "histogram"}),
        ('{__name__=~"h_.*"}', {"h": "histogram"}),
        ("h_bucket", {}),
        ("rate(h_sum[5m]) / rate(h_count[5m])", {}),
    ],
)
def test_native_histogram_is_kept_for_queries_of_classic_parts_that_are_absent(
    query: str, types: dict[str, str]
) -> None:
    scraped = inventory({"h": {"x": 1, "y": 1}, "other": {"x": 1}}, other="gauge", **types)
    assert names(scraped, [query]) == {"other"}
    assert {(each.name, each.job) for each in examine(scraped, ['h_bucket{job="x"}']).unused} == {
        ("h", "y"),
        ("other", "x"),
    }
    assert {each.name for each in examine(scraped, [], [record("r", query)]).only_unused_rules} == {"h"}


CLASSIC = {f"h_{part}": {"x": series} for part, series in (("bucket", 1000), ("sum", 50), ("count", 50))}


@pytest.mark.parametrize(
    ("query", "unused"),
    [
        ('{job="x",__name__!~".+_bucket"}', {"h_bucket"}),
        ('{__name__=~".+_count"}', {"h_bucket", "g", "c_total"}),
        ('{job="x",__name__!~"h_bucket|g|c_total"}', {"h_bucket", "g", "c_total"}),
    ],
)
@pytest.mark.parametrize("types", [{"h": "histogram", "g": "gauge", "c_total": "counter"}, {"c": "counter"}, {}])
def test_selection_of_many_names_does_not_keep_what_it_excludes(
    query: str, unused: set[str], types: dict[str, str]
) -> None:
    scraped = inventory({**CLASSIC, "g": {"x": 10}, "c_total": {"x": 10}}, **types)
    assert names(scraped, [query]) == unused
    only_rule = examine(scraped, ["h_count"], [record("r", query)])
    assert "h_bucket" in {each.name for each in only_rule.unused}


@pytest.mark.parametrize("query", ["h_bucket_count", "h_bucket_sum"])
def test_part_of_a_part_does_not_exist(query: str) -> None:
    assert names(inventory(CLASSIC), [query]) == set(CLASSIC)


@pytest.mark.parametrize(("types", "unused"), [({}, set()), ({"c": "counter"}, {"c_total"})])
def test_metric_without_a_type_is_kept_for_a_query_that_names_its_part(types: dict[str, str], unused: set[str]) -> None:
    assert names(inventory({"c_total": {"x": 1}}, **types), ["rate(c_total_count[5m])"]) == unused


def test_metric_without_a_type_is_kept_for_its_part_that_another_job_has() -> None:
    scraped = inventory({"h": {"x": 1}, "h_bucket": {"y": 1}})
    assert names(scraped, ["h_bucket"]) == set()
    assert names(scraped, ['{__name__=~"h_.*"}']) == {"h"}


def test_gauge_is_not_kept_for_a_query_of_a_part() -> None:
    assert names(inventory({"g": {"x": 1}}, g="gauge"), ["g_count"]) == {"g"}


def test_counters_with_the_name_of_a_part_are_not_a_family() -> None:
    scraped = inventory({"job_count": {"x": 1}, "job_sum": {"x": 1}, "job": {"x": 1}}, job="gauge")
    assert names(scraped, ["job_count"]) == {"job_sum", "job"}


def test_metrics_of_prometheus_and_muster_are_kept() -> None:
    kept = (
        "up",
        "scrape_duration_seconds",
        "scrape_anything",
        "ALERTS",
        "muster_leader",
        "prometheus_tsdb_head_series",
    )
    assert names(inventory({name: {"x": 1} for name in (*kept, "upper", "prometheus_other")})) == {
        "upper",
        "prometheus_other",
    }


def test_metric_that_could_not_be_counted_is_kept() -> None:
    scraped = inventory({"a": {"x": 1}})
    scraped.unknown["a"] = "timeout"
    assert names(scraped) == set()


def test_broad_queries_show_what_only_they_keep() -> None:
    findings = examine(ABC, ["a", 'count by (__name__) ({job="x"})', '{job="x"} offset 1d', "sum(c) smoothed"])
    assert findings.unused == []
    assert [(each.broad.text, each.metrics, each.series, each.broad.others) for each in findings.broad] == [
        ('count by (__name__) ({job="x"})', 1, 2, 1),
        ("sum(c) smoothed", 0, 0, 0),
    ]
    assert findings.broad[1].broad.doubt


def test_two_queries_that_keep_everything_show_what_they_keep_together() -> None:
    findings = examine(ABC, ["sum(", '{job=~".+"}'])
    assert findings.unused == []
    assert [(each.series, each.shared_series) for each in findings.broad] == [(0, 33), (0, 33)]


@pytest.mark.slow
def test_very_many_broad_queries_need_bounded_memory() -> None:
    ledger = Ledger({"a": ["x"]})
    for n in range(6000):
        ledger.add(read_query(f'{{__name__=~"a|b{n}.*"}}'), "log", f"q{n}")
    assert len(ledger.broad) == 5001
    assert ledger.broad[-1].others == 999


def test_proposed_rules_drop_exactly_what_is_unused() -> None:
    scraped = inventory({"a": {"x": 1, "y": 2}, "b": {"x": 4}, "c": {"x": 8, "none": 16}, "d": {"x": 1}})
    del scraped.pools["none"]
    proposal = propose(examine(scraped, ['a{job="y"}', "d"]).unused, scraped)
    assert [(each.pool, each.job, each.regex, each.names, each.series) for each in proposal.rules] == [
        ("x", None, "b|c", ("b", "c"), 12),
        ("x", "x", "x;(a)", ("a",), 1),
    ]
    assert proposal.rules[0].bytes_per_day == 12 / 10 * 86400 * 2
    assert [(each.name, each.job) for each in proposal.unplaced] == [("c", "none")]


def test_separator_in_the_name_of_a_job_prevents_a_rule_about_it() -> None:
    scraped = inventory({"a": {"x;y": 1, "z": 1}})
    proposal = propose(examine(scraped, ['a{job="z"}']).unused, scraped)
    assert (proposal.rules, len(proposal.unplaced)) == ((), 1)


def test_rules_of_a_job_go_to_the_pool_that_scrapes_the_metric() -> None:
    scraped = Inventory(sample_bytes=1.0)
    for n, path in enumerate(("/metrics", "/cadvisor")):
        pool = Pool(f"kubelet/{n}", {"kubelet"}, 10.0 * (n + 1), {"job": {"kubelet"}, "metrics_path": {path}})
        scraped.pools[pool.name] = pool
    scraped.mark_jobs()
    for name, path, series in (("a", "/metrics", 5), ("b", "/cadvisor", 7), ("b", "/metrics", 1), ("c", "/other", 9)):
        scraped.add({"__name__": name, "job": "kubelet", "metrics_path": path}, series)
    proposal = propose(examine(scraped).unused, scraped)
    assert [(each.pool, each.regex, each.series) for each in proposal.rules] == [
        ("kubelet/0", "a|b|c", 15),
        ("kubelet/1", "b|c", 7),
    ]
