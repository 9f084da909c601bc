"""Requests about `othershapes`, whose prices nothing was fitted to."""

from __future__ import annotations

from collections.abc import Iterator

from bench.guard.corpus import Corpus
from bench.guard.othershapes import MODELS
from bench.guard.users import Request, query_range

_MATCH = "match[]"
_INSTANT = (
    "inference_requests_total",
    'inference_requests_total{region="eu-west-1"}',
    f'inference_requests_total{{model="{MODELS[1]}"}}',
    "sum by (route) (rate(inference_requests_total[5m]))",
    "sum by (model, region) (inference_requests_total)",
    "sum without (route) (inference_requests_total)",
    "count by (code) (inference_requests_total)",
    "count(count by (route, code) (inference_requests_total))",
    "topk(7, inference_requests_total)",
    "topk by (region) (3, inference_requests_total)",
    "bottomk(2, sum by (route) (inference_requests_total))",
    "workload_info",
    "sum by (uid) (workload_info)",
    "count by (image) (workload_info)",
    "workload_gpu_share * on (shard) group_left () (count by (shard) (workload_gpu_share))",
    "q",
    'q{i=~"1.."}',
    "q offset 5m",
    "q > 7",
    'count_values("v", q)',
    "avg by (s) (q)",
    "histogram_quantile(0.9, queue_latency_seconds_bucket)",
    "histogram_quantile(0.5, sum by (queue, le) (rate(queue_latency_seconds_bucket[10m])))",
    "histogram_quantile(0.99, sum by (shard, le) (rate(queue_latency_seconds_bucket[5m])))",
    "queue_latency_seconds_sum / queue_latency_seconds_count",
    "rate(queue_latency_seconds_sum[5m]) / rate(queue_latency_seconds_count[5m])",
    '{__name__=~"loose_.*"}',
    '{__name__=~"loose_1[0-9]_total"}',
    "sum by (__name__) ({__name__=~'loose_.*'})",
    "loose_7_total or loose_8_total or loose_9_total",
    "device_power_watts unless on (node) device_errors_total > 0",
    "device_power_watts and on (node, device) device_errors_total",
    "device_power_watts + on (node, device) device_errors_total",
    "max by (node) (max_over_time(device_power_watts[20m]))",
    "sum(device_power_watts) by (vendor)",
    'label_replace(device_power_watts, "rack", "$1", "node", "n[0-9]+[.](rack-[0-9]+)[.].*")',
    'sum by (rack) (label_replace(device_power_watts, "rack", "$1", "node", "n[0-9]+[.](rack-[0-9]+)[.].*"))',
    "max_over_time(sum by (node) (device_power_watts)[10m:2m])",
    "absent(nothing_here)",
    "nothing_here",
    "batch_task_rows",
    "sum by (kind) (batch_task_rows)",
    "device_power_watts[10m]",
    "quantile by (node) (0.5, device_power_watts)",
    "scalar(sum(q)) + 1",
)
_RANGED = (
    ("device_power_watts", 1200.0, 30.0),
    ("device_errors_total", 1200.0, 30.0),
    ("rate(device_errors_total[4m])", 600.0, 60.0),
    ("sum by (node) (device_power_watts)", 1200.0, 30.0),
    ("avg without (device) (device_power_watts)", 900.0, 60.0),
    ('sum by (route) (rate(inference_requests_total{code="500"}[5m]))', 1200.0, 60.0),
    ('sum by (model) (rate(inference_requests_total{code!="200"}[5m]))', 1200.0, 15.0),
    ("sum(rate(inference_requests_total[5m])) by (code) / ignoring (code) group_left sum(q)", 900.0, 15.0),
    ('workload_info{uid=~"0.*"}', 600.0, 120.0),
    ("q @ end()", 600.0, 60.0),
    ("count(q offset 3m)", 600.0, 15.0),
    ("workload_gpu_share", 600.0, 60.0),
    ("histogram_quantile(0.9, rate(queue_latency_seconds_bucket[5m]))", 600.0, 30.0),
    ("max_over_time(rate(device_errors_total[4m])[10m:1m])", 300.0, 60.0),
    ("topk(3, device_power_watts)", 600.0, 30.0),
    ("batch_task_rows", 1200.0, 60.0),
    ("count by (kind) (batch_task_rows)", 1200.0, 60.0),
    ('{__name__=~"loose_2.*"}', 600.0, 60.0),
)
_NATIVE = (
    ("native_latency_seconds", 0.0, 0.0),
    ("rate(native_latency_seconds[5m])", 600.0, 60.0),
    ("sum by (shard) (rate(native_latency_seconds[5m]))", 600.0, 60.0),
    ("histogram_quantile(0.9, native_latency_seconds)", 0.0, 0.0),
    ("histogram_count(native_latency_seconds)", 0.0, 0.0),
)
_SELECTORS = (
    'inference_requests_total{code="429"}',
    "workload_info",
    'q{s="1"}',
    '{__name__=~"loose_3.*"}',
    '{node="n7.rack-0.site.example"}',
    "batch_task_rows",
)
_VALUES = (
    ("model", "inference_requests_total"),
    ("route", 'inference_requests_total{code="500"}'),
    ("uid", "workload_info"),
    ("image", 'workload_info{uid=~"a.*"}'),
    ("i", 'q{s="2"}'),
    ("node", "device_power_watts"),
    ("le", "queue_latency_seconds_bucket"),
    ("__name__", '{__name__=~"loose_.*"}'),
    ("rack", "device_power_watts"),
    ("task", "batch_task_rows"),
)


def held_out(native: bool) -> Corpus:
    """The requests; `native`: with those of native histograms."""
    return Corpus("held_out", tuple(_queries(native)), tuple(_metadata()), tuple(_dear()))


def _queries(native: bool) -> Iterator[Request]:
    """Queries; `native`: with those of native histograms."""
    for text in _INSTANT:
        yield Request("/api/v1/query", (("query", text),), 0.0)
    for text, range_s, step_s in (*_RANGED, *(_NATIVE if native else ())):
        if step_s:
            yield query_range(text, range_s=range_s, step_s=step_s)
        else:
            yield Request("/api/v1/query", (("query", text),), 0.0)


def _metadata() -> Iterator[Request]:
    """Requests for series, labels and values."""
    for selector in _SELECTORS:
        yield Request("/api/v1/series", ((_MATCH, selector),))
        yield Request("/api/v1/labels", ((_MATCH, selector),))
        yield Request("/federate", ((_MATCH, selector),), None)
    yield Request("/api/v1/series", ((_MATCH, "loose_4_total"), (_MATCH, 'q{i="7"}')))
    yield Request("/api/v1/labels", ((_MATCH, "loose_4_total"), (_MATCH, 'q{i="7"}')))
    yield Request("/api/v1/labels", ())
    for label, selector in _VALUES:
        yield Request(f"/api/v1/label/{label}/values", ((_MATCH, selector),))
        yield Request(f"/api/v1/label/{label}/values", ())


def _dear() -> Iterator[Request]:
    """Requests that take much memory."""
    yield query_range("q", step_s=15)
    yield query_range("rate(queue_latency_seconds_bucket[5m])", step_s=15)
    yield Request("/api/v1/series", ((_MATCH, '{__name__=~".+"}'),))
    yield query_range("inference_requests_total", step_s=15)
    yield query_range("workload_info", step_s=15)
