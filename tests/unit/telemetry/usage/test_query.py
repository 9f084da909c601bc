"""Which metrics a query reads: with Grafana's variables, with syntax that is not known, and without a name."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muster.telemetry.prometheus.probe import PROBE_MATCHER
from muster.telemetry.promql.expression import parse_expression
from muster.telemetry.promql.matcher import Matcher
from muster.telemetry.usage.lexical import possible_selections
from muster.telemetry.usage.query import Query, read_query
from muster.telemetry.usage.variables import Values, fill

NAMES = ("a_total", "b_total", "node_sda_bytes", "node_sdb_bytes", "node_cpu", "other", "le", "job", "target_info")
VARIABLES: dict[str, Values] = {
    "disk": ("sda", "sdb"),
    "limit": ("3", "10"),
    "window": ("5m",),
    "whole": ("rate(a_total[5m])", "sum(b_total)"),
    "self": ("$self + 1",),
    "level": (".5", "0.99", "1e-3"),
    "dotted": ("a.total", "b"),
    "letters": ("ab",),
    "arguments": ("5, a_total",),
    "job": None,
}


def read(query: Query, names: tuple[str, ...] = NAMES, job: str = "node") -> set[str]:
    """Names of metrics of a job that a query reads."""
    return {name for name in names if any(each.reads_name(name) and each.reads_job(job) for each in query.selections)}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("sum by (job, le) (rate(a_total[5m])) / on (other) b_total", {"a_total", "b_total"}),
        ("a_total # b_total", {"a_total"}),
        ("rate(a_total[$__rate_interval])", {"a_total"}),
        ("rate(a_total[$__interval:]) + max_over_time(b_total[${__range_s}s:1m])", {"a_total", "b_total"}),
        ("rate(a_total[[[window]]] offset $window)", {"a_total"}),
        ('a_total{job=~"$job", pod=~"${pod:regex}", x="[[y]]"}', {"a_total"}),
        ("a_total{job=~${job:doublequote}}", {"a_total"}),
        ("a_total{$filters}", {"a_total"}),
        ('a_total{x="1",$filters}', {"a_total"}),
        ('a_total{$label="x"}', {"a_total"}),
        ("topk($limit, a_total) > $limit", {"a_total"}),
        ("sum by ($group) (a_total)", {"a_total"}),
        ("$aggregation(a_total)", {"a_total"}),
        ("$aggregation by (job) (a_total)", {"a_total"}),
        ("node_${disk}_bytes", {"node_sda_bytes", "node_sdb_bytes"}),
        ("rate(node_[[disk]]_bytes[5m])", {"node_sda_bytes", "node_sdb_bytes"}),
        ('{__name__="node_${disk}_bytes"}', {"node_sda_bytes", "node_sdb_bytes"}),
        ('{__name__=~"node_${disk:regex}_bytes|other"}', {"node_sda_bytes", "node_sdb_bytes", "other"}),
        ("$whole", {"a_total", "b_total"}),
        ('{"a_total", x="b_total"}', {"a_total"}),
        ('{__name__=~"node_.*", __name__!~".*_bytes"}', {"node_cpu"}),
        ("info(a_total)", {"a_total", "target_info"}),
        ("a_total @ ${__to:date:seconds}", {"a_total"}),
        ("label_replace(a_total, 'x', '$1', 'y', '(.*)$')", {"a_total"}),
        ('a_total{job="api"}', set()),
        ('a_total{job!="api"}', {"a_total"}),
        ('a_total{job=~"no.*|api"}', {"a_total"}),
        ("1 + vector($limit)", set()),
        ("a_total offset $unknown", {"a_total"}),
        ("topk by (job) ( $unknown, a_total)", {"a_total"}),
        ("histogram_quantile(${unknown}, sum by (le) (a_total))", {"a_total"}),
        ("quantile($level, a_total)", {"a_total"}),
        ('{__name__!="node_${disk}_bytes",job="node"}', set(NAMES)),
        ('{__name__=~"$dotted"}', {"a_total"}),
        ('{__name__=~"node_sd[$letters]_bytes",job="node"}', set(NAMES)),
    ],
)
def test_understood_query_reads_exactly_its_metrics(text: str, names: set[str]) -> None:
    query = read_query(text, VARIABLES)
    assert (read(query), query.doubt) == (names, "")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node_${unknown}_bytes", {"node_sda_bytes", "node_sdb_bytes"}),
        ("code_${limit}_total", {"code_3_total", "code_10_total"}),
        ("job:errors:rate$window", {"job:errors:rate5m", "job:errors:rate1h"}),
        ('{__name__=~"node_${unknown}+_bytes"}', {"node_sda_bytes", "node_sdb_bytes"}),
        ('{__name__=~"node_sd[$unknown]_bytes"}', {"node_sda_bytes", "node_sdb_bytes"}),
        ("topk($arguments)", {"a_total"}),
        ("topk($unknown)", set(NAMES)),
        ("$unknown", set(NAMES)),
        ("max($unknown)", set(NAMES)),
        ("topk(3, $unknown)", set(NAMES)),
        ("sum($unknown)", set(NAMES)),
        ('{__name__=~"$unknown"}', set(NAMES)),
        ('{__name__!="$unknown"}', set(NAMES)),
        ("$self", set(NAMES)),
        ("rate(a_total[5m]) smoothed", {"a_total"}),
        ("WITH (x = a_total) x + b_total", {"a_total", "b_total"}),
        ("a_total |= b_total{", {"a_total", "b_total"}),
        ('{app="x"} |= "a_total"', set(NAMES)),
        ("sum({{ a_total }})", set(NAMES)),
        ('a_total{x="b_total"} | json', {"a_total", "b_total"}),
        ('{"b_total"} | json', {"b_total"}),
        ('sum({__name__=~"a.*"}', set(NAMES)),
        ("'a_total", {"a_total"}),
        ("node_$unknown |= 1", {"node_sda_bytes", "node_sdb_bytes", "node_cpu"}),
        ('{__name__=~"(a+)+_total"}', set(NAMES)),
        ("(" * 600 + "a_total" + ")" * 600, {"a_total"}),
    ],
)
def test_doubtful_query_reads_everything_that_it_could(text: str, names: set[str]) -> None:
    query = read_query(text, VARIABLES)
    assert read(query, tuple({*NAMES, *names})) >= names
    assert query.doubt


@pytest.mark.parametrize(
    "text",
    ["???", "sum by (", "sum by (pod) (", "sum without (a_total", "rate([5m", "topk($limit, ", "1 +", "*"],
)
def test_query_that_cannot_be_parsed_and_names_no_metric_reads_everything(text: str) -> None:
    query = read_query(text, VARIABLES)
    assert read(query) == set(NAMES)
    assert "cannot be parsed" in query.doubt


@pytest.mark.parametrize(
    "text",
    [
        'sum(rate(a_total{x="$y}[5m]))',
        'sum(rate(a_total{x="$y"}[5m])',
        'a_total{x=~"[$y',
        "a_total{x!='$y} / ",
        "sum by (pod) (a_total[",
        '{"a_total"',
    ],
)
def test_broken_query_reads_only_what_it_names(text: str) -> None:
    query = read_query(text)
    assert read(query) == {"a_total"}
    assert "cannot be parsed" in query.doubt


def test_query_that_is_only_a_comment_reads_nothing() -> None:
    assert read(read_query("# a_total")) == set()


def test_query_that_counts_series_for_muster_reads_nothing() -> None:
    query = read_query(f'count by (__name__) ({{__name__=~"a_total|b_total",{PROBE_MATCHER}}})')
    assert query == Query(frozenset())


def test_only_the_probe_of_a_query_is_left_out() -> None:
    assert read(read_query(f"count(a_total{{{PROBE_MATCHER}}}) + b_total")) == {"b_total"}


LABELS = st.sampled_from(["job", "x", "le"])
TEXTS = st.text(st.sampled_from('ab_ "\\{}[]()#$|=~'), max_size=6)
QUOTED = TEXTS.map(lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
CONDITIONS = st.tuples(LABELS, st.sampled_from(["=", "!="]), QUOTED).map("".join)
PLAIN = st.sampled_from(NAMES[:6])
SELECTORS = st.one_of(
    PLAIN,
    st.tuples(PLAIN, st.lists(CONDITIONS, max_size=3)).map(lambda each: f"{each[0]}{{{','.join(each[1])}}}"),
    CONDITIONS.map(lambda each: f'{{x!="",{each}}}'),
    PLAIN.map(lambda name: f'{{__name__="{name}"}}'),
    PLAIN.map(lambda name: f'{{x!="","{name}"}}'),
)
EXPRESSIONS = st.recursive(
    SELECTORS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" + ", " unless ", " / on (job) "]), inner).map("".join),
        inner.map(lambda each: f"sum by (le) ({each})"),
        st.tuples(SELECTORS, st.sampled_from(["[5m]", "[5m:1m]"])).map(
            lambda each: f"max_over_time({each[0]}{each[1]})"
        ),
        st.tuples(inner, QUOTED).map(lambda each: f'label_replace({each[0]}, "x", {each[1]}, "job", "")'),
    ),
    max_leaves=4,
)


@given(EXPRESSIONS)
@example('a_total{x="{"}')
@example('a_total unless {x!="",job=""}')
@example("{x!=\"\",job='b_total'} # {")
def test_names_by_words_contain_all_names_of_the_grammar(text: str) -> None:
    """If the parser did not understand a query, the words still would not miss a metric."""
    named = [{each.value for each in group if each.name == "__name__"} for group in _groups(text)]
    expected = set(NAMES) if not all(named) else set().union(*named)
    assert read(Query(frozenset(possible_selections(fill(text, {}))))) >= expected


def _groups(text: str) -> list[tuple[Matcher, ...]]:
    return [group for selector in parse_expression(text).selectors for group in selector.matchers]
